"""Cells run through the library: memory's scope, the lock, and what is set aside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import results
from harness.builtins import registries
from harness.cell import CellRequest, _set_aside, run_cell
from harness.errors import EXIT_FAILED, UserError
from harness.lock import CellLock
from harness.spec import build_spec

FAKE = Path(__file__).parents[1] / "cli" / "fake_parts.py"


@pytest.fixture
def request_(tmp_path: Path) -> CellRequest:
    known = registries([FAKE])
    spec = build_spec(known.methods.load("fake"), known.benchmarks.load("thin-air"), seed=5)
    return CellRequest(spec, tmp_path / "runs", plugins=(FAKE,))


def test_peak_memory_is_the_workers_own(request_: CellRequest) -> None:
    """M2: what this process touched does not show in its child."""
    touched = bytearray(os.urandom(1)) * (900 * 2**20)
    events = []
    outcome = run_cell(request_, on_event=events.append)
    assert outcome.status == "ok"
    memory = outcome.record["peak_memory"]["bytes"]
    assert 50 * 2**20 < memory < len(touched)
    assert [event["event"] for event in events][:2] == ["started", "ready"]
    assert events[-1] == {**events[-1], "event": "finished", "status": "ok"}


def test_a_cell_that_changed_since_it_was_planned_is_not_run(
    request_: CellRequest, tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(FAKE.read_text().replace("rate: float = 0.5", "rate: float = 0.25"))
    changed = CellRequest(request_.spec, request_.runs_dir, plugins=(plugin,))
    outcome = run_cell(changed)
    assert outcome.status == "failed"
    assert outcome.document is not None
    assert "changed between planning and running" in outcome.document["error"]["message"]


def test_a_held_lock_names_its_owner_and_dies_with_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from harness.lock import CellLock\n"
        "with CellLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid}") as error, CellLock(tmp_path):
        pass
    assert error.value.exit_code == EXIT_FAILED
    holder.kill()
    holder.wait()
    with CellLock(tmp_path) as lock:
        assert lock.descriptor >= 0
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_stays_held_while_a_worker_that_inherited_it_lives(tmp_path: Path) -> None:
    with CellLock(tmp_path) as lock:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=(lock.descriptor,))
    with pytest.raises(UserError), CellLock(tmp_path):
        pass
    worker.kill()
    worker.wait()
    with CellLock(tmp_path):
        pass


def test_setting_aside_keeps_the_checkpoint_unless_all_must_go(tmp_path: Path) -> None:
    assert _set_aside(tmp_path, everything=False) == 1
    for name in ("lock", "run.json", "metrics.json", "checkpoint.safetensors", "events.jsonl"):
        (tmp_path / name).write_text(name)
    assert _set_aside(tmp_path, everything=False) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("attempts", "checkpoint.safetensors", "events.jsonl", "lock"),
    ]
    (tmp_path / "run.json").write_text("again")
    assert _set_aside(tmp_path, everything=True) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts", "lock"]
    assert (tmp_path / "attempts" / "001" / "run.json").read_text() == "run.json"
    assert (tmp_path / "attempts" / "002" / "run.json").read_text() == "again"


def test_a_damaged_result_is_computed_again(request_: CellRequest) -> None:
    first = run_cell(request_)
    (request_.cell_dir / "metrics.json").write_text("{")
    again = run_cell(request_)
    assert not again.reused
    assert again.document == first.document
    assert run_cell(request_).reused
    assert results.read_metrics(request_.cell_dir / "metrics.json") == first.document
