"""Cells run through the library: memory's scope, the lock, and what is set aside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import lock, provenance, results
from harness.builtins import registries
from harness.cell import CellRequest, _set_aside, finished, run_cell
from harness.errors import EXIT_FAILED, UserError
from harness.lock import CellLock
from harness.spec import build_spec

FAKE = Path(__file__).parents[1] / "cli" / "fake_parts.py"


@pytest.fixture
def request_(tmp_path: Path) -> CellRequest:
    known = registries([FAKE])
    spec = build_spec(known.methods.load("fake"), known.benchmarks.load("thin-air"), seed=5)
    return CellRequest(spec, tmp_path / "runs", plugins=(FAKE,))


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


def test_a_held_lock_names_its_owner_and_dies_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_GRACE_SECONDS", 0.1)
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
    with CellLock(tmp_path) as held:
        assert held.descriptor >= 0
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_stays_held_while_a_worker_that_inherited_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_GRACE_SECONDS", 0.1)
    with CellLock(tmp_path) as held:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=(held.descriptor,))
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


def test_peak_memory_is_the_workers_own_and_a_damaged_result_is_not_reused(
    request_: CellRequest,
) -> None:
    """M2: what this process touched does not show in its child."""
    touched = bytearray(os.urandom(1)) * (900 * 2**20)
    events: list[Mapping[str, Any]] = []
    first = run_cell(request_, on_event=events.append)
    assert first.status == "ok"
    memory = first.record["peak_memory"]
    assert 50 * 2**20 < memory["bytes"] < len(touched)
    assert memory["processes"] == 1
    assert [event["event"] for event in events][:2] == ["started", "ready"]
    assert events[-1] == {**events[-1], "event": "finished", "status": "ok"}
    again = run_cell(request_)
    assert again.reused
    assert again.document == first.document
    (request_.cell_dir / "metrics.json").write_text("{")
    assert finished(request_.cell_dir, request_.spec) is None


def test_what_other_code_began_is_set_aside_and_the_cell_starts_over(
    request_: CellRequest,
) -> None:
    cell = request_.cell_dir
    cell.mkdir(parents=True)
    (cell / "code-fingerprint").write_text("0ddc0de" * 9)
    (cell / "walk.json").write_text("[1e9]")
    events: list[Mapping[str, Any]] = []
    outcome = run_cell(request_, on_event=events.append)
    assert outcome.status == "ok"
    assert abs(results.read_lines(cell / "history.jsonl")[0]["reward"]) < 1e3
    assert (cell / "attempts" / "001" / "walk.json").read_text() == "[1e9]"
    assert events[0]["event"] == "warning"
    assert f"code 0ddc0de0ddc0, now {request_.code[:12]}): it starts over" in events[0]["message"]
    assert outcome.record["extra"]["code_fingerprint"] == request_.code
    assert (cell / "code-fingerprint").read_text().strip() == request_.code
    assert request_.code not in (cell / "metrics.json").read_text()
    job = json.loads((cell / "request.json").read_text())
    assert Path(job["base_dir"]) == request_.runs_dir / "base" / request_.code[:12]


def test_the_code_fingerprint_sees_code_and_not_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {
        "methods/deep/down.py": "x = 1\n",
        "benchmarks/task.py": "y = 2\n",
        "harness/launch.py": "",
        "harness/seeding.py": "",
        "harness/worker.py": "z = 3\n",
        "harness/cli/display.py": "colour = 4\n",
        "plugin.py": "w = 5\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(provenance, "code_root", lambda: tmp_path)
    plugin = tmp_path / "plugin.py"
    original = provenance.code_fingerprint([plugin])
    assert original is not None
    assert len(original) == 64
    assert provenance.code_fingerprint() != original
    for name, text in sources.items():
        path = tmp_path / name
        path.write_text("\n# a comment\n" + text.replace("\n", "  \n"))
        assert provenance.code_fingerprint([plugin]) == original, name
        path.write_text(text + "    v = 6\n")
        changed = provenance.code_fingerprint([plugin]) != original
        assert changed == (name != "harness/cli/display.py"), name
        path.write_text(text)
    (tmp_path / "methods/deep/down.py").rename(tmp_path / "methods/deep/moved.py")
    assert provenance.code_fingerprint([plugin]) != original
    plugin.unlink()
    assert provenance.code_fingerprint([plugin]) is None
