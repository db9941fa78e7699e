"""Metrics JSON and run record: stable bytes, strict reading, atomic writing."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import results, strict_json
from harness.atomic import atomic_write
from methods.base import MetricSpec, MetricValue

SPECS = {
    "joint_success": MetricSpec("joint_success", "share", "maximize", 0.0, 1.0, "Both right."),
    "average_cost": MetricSpec("average_cost", "calls", "minimize", 0.0, None, "Calls an episode."),
}
VALUES = {
    "joint_success": MetricValue(0.1 + 0.2, 3, 0.05),
    "average_cost": MetricValue(7, 3, None),
}


def build(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "cell_id": "ab" * 32,
        "method": {"name": "sinkflex-rl", "version": "1", "config": {"window": 64}},
        "benchmark": {"name": "scalemcp-mini", "version": "1", "data_fingerprint": "cd" * 32},
        "seed": 42,
        "budget": {"episodes": 3, "updates": 1},
        "specs": SPECS,
        "values": VALUES,
        "samples": {"joint_success": [0, 1, 0.5]},
    }
    return results.build_metrics_document(**{**arguments, **changes})


def edited(tmp_path: Path, edit: Any) -> Path:
    """A written metrics file whose parsed content was passed through ``edit``."""
    path = tmp_path / "edited.json"
    document = json.loads(results.dumps(build()))
    edit(document)
    path.write_text(json.dumps(document))
    return path


# --- Building ------------------------------------------------------------------------------------


def test_bytes_are_canonical() -> None:
    text = results.dumps(build())
    assert text.endswith("}\n")
    assert '\n  "cell_id"' in text
    assert "0.30000000000000004" in text  # shortest text that reads back as the same float
    assert list(json.loads(text)) == sorted(json.loads(text))
    shuffled = build(values=dict(reversed(VALUES.items())), specs=dict(reversed(SPECS.items())))
    assert results.dumps(shuffled) == text


@pytest.mark.parametrize("one", [1, 1.0, True, np.float32(1), np.float64(1), np.int64(1)])
def test_every_kind_of_one_gives_the_same_bytes(one: Any) -> None:
    document = build(
        values={**VALUES, "joint_success": MetricValue(one, 3, None)},
        samples={"joint_success": [one]},
    )
    assert '"value": 1.0' in results.dumps(document)
    assert document["samples"]["joint_success"] == [1.0]


@pytest.mark.parametrize(
    ("value", "said"),
    [(math.nan, "NaN"), (math.inf, "+infinity"), (np.float32("-inf"), "-infinity")],
)
def test_non_finite_metric_is_null_with_a_reason(tmp_path: Path, value: Any, said: str) -> None:
    """H1: strict JSON, null with a reason, and still byte-stable."""
    document = build(
        values={**VALUES, "joint_success": MetricValue(value, 3, math.nan)},
        samples={"joint_success": [value, 1.0, None]},
    )
    entry = document["metrics"]["joint_success"]
    assert entry["value"] is None
    assert entry["stderr"] is None
    assert entry["reason"] == f"value was {said}; stderr was NaN"
    assert document["samples"]["joint_success"] == [None, 1.0, None]
    path = tmp_path / "m.json"
    results.write_metrics(path, document)
    assert not any(word in path.read_text() for word in ("NaN,", "Infinity"))
    assert results.read_metrics(path) == document
    assert results.dumps(results.read_metrics(path)) == path.read_text()


def test_missing_metric_is_refused() -> None:
    with pytest.raises(results.ResultsError, match=r"missing: average_cost\.\n.*reason="):
        build(values={"joint_success": VALUES["joint_success"]})


def test_undeclared_metric_is_refused() -> None:
    with pytest.raises(results.ResultsError, match=r"without a MetricSpec: bonus"):
        build(values={**VALUES, "bonus": MetricValue(1, 1)})


def test_undefined_metric_needs_a_reason() -> None:
    with pytest.raises(results.ResultsError, match="no value and no reason"):
        build(values={**VALUES, "average_cost": MetricValue(None, 0)})
    document = build(values={**VALUES, "average_cost": MetricValue(None, 0, reason="no episode")})
    assert document["metrics"]["average_cost"]["reason"] == "no episode"


@pytest.mark.parametrize("value", [1.001, -1e-6])
def test_value_outside_its_bounds_is_refused(value: float) -> None:
    with pytest.raises(results.ResultsError, match=r"outside its bounds 0\.0 to 1\.0"):
        build(values={**VALUES, "joint_success": MetricValue(value, 3)})


def test_rounding_of_a_mean_is_inside_its_bounds() -> None:
    over = math.nextafter(1.0, 2.0)
    document = build(values={**VALUES, "joint_success": MetricValue(over, 3)})
    assert document["metrics"]["joint_success"]["value"] == over


def test_failed_document_keeps_the_reason_and_no_address(tmp_path: Path) -> None:
    """H8 in part: the file of a failed cell says why, with the same bytes at every failure."""
    document = results.failed_document(
        cell_id="ab" * 32,
        method={"name": "a", "version": "1", "config": {}},
        benchmark={"name": "b", "version": "1", "data_fingerprint": "f"},
        seed=1,
        budget={"episodes": 1},
        error_type="ValueError",
        message="bad <object at 0x7f3a2b1c0d10> \x1b[31mred\udcff" + "x" * 10_000,
    )
    results.write_metrics(tmp_path / "m.json", document)
    back = results.read_metrics(tmp_path / "m.json")
    assert back["status"] == "failed"
    assert back["error"]["message"].startswith("bad <object at 0x...> [31mred\\udcffx")
    assert len(back["error"]["message"]) < 4100


@pytest.mark.parametrize(
    "config", [{"lr": math.nan}, {1: "key"}, {"when": object()}, {"text": "\ud800"}]
)
def test_config_without_a_json_form_is_refused(tmp_path: Path, config: Any) -> None:
    path = tmp_path / "m.json"
    with pytest.raises(results.ResultsError, match=r"method\.config"):
        results.write_metrics(path, build(method={"name": "a", "version": "1", "config": config}))
    assert not path.exists()


# --- Reading -------------------------------------------------------------------------------------

RAW = results.dumps(build())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (RAW.replace("7.0", "NaN").encode(), "NaN, which is not JSON"),
        (RAW.replace("7.0", "-Infinity").encode(), "-Infinity, which is not JSON"),
        (RAW.replace("7.0", "1e999").encode(), "too large for a 64-bit float"),
        (RAW.replace('"seed": 42', '"seed": 42, "seed": 43').encode(), "'seed' appears twice"),
        (RAW[: len(RAW) // 2].encode(), "ends too early"),
        (b"", "ends too early"),
        (RAW.replace("scalemcp", "scal\u00e9mcp").encode("latin-1"), "not UTF-8"),
        (b"\xef\xbb\xbf" + RAW.encode(), "BOM"),
        (b"[" * 100_000, "nested too deeply"),
        (RAW.replace("7.0", "7" * 5000).encode(), "number that cannot be read"),
        (b"[]", "holds a list"),
        (b"{}", "breaks the metrics schema"),
    ],
)
def test_unusable_content_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(data)
    with pytest.raises(results.ResultsError) as caught:
        results.read_metrics(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 600 + len(str(path))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: d.pop("benchmark"), "'benchmark' is a required property"),
        (lambda d: d.update(host="me"), "'host' was unexpected"),
        (lambda d: d.update(seed="42"), "seed breaks"),
        (lambda d: d.update(seed=True), "seed breaks"),
        (lambda d: d.update(status="fine"), "status breaks"),
        (lambda d: d.update(status="failed"), "error breaks"),
        (lambda d: d.update(error={"type": "x", "message": ""}), "error breaks"),
        (lambda d: d.update(schema_version=0), "schema_version breaks"),
        (lambda d: d["samples"].update(x=[1, "2"]), "samples.x.1 breaks"),
        (lambda d: d["samples"].update(x=[1, True]), "samples.x.1 breaks"),
        (lambda d: d["metrics"]["average_cost"].update(value=None), "'reason' is a required"),
        (lambda d: d["metrics"]["average_cost"].update(value=False), "average_cost.value breaks"),
        (lambda d: d["metrics"]["average_cost"].update(direction="up"), "direction breaks"),
        (lambda d: d["metrics"]["average_cost"].update(n=-1), "average_cost.n breaks"),
    ],
)
def test_broken_schema_is_refused_with_its_address(tmp_path: Path, edit: Any, said: str) -> None:
    with pytest.raises(results.ResultsError) as caught:
        results.read_metrics(edited(tmp_path, edit))
    assert said in str(caught.value)


def test_newer_schema_has_its_own_error(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda d: d.update(schema_version=2, surprise=1))
    with pytest.raises(results.NewerSchemaError, match=r"schema_version 2[^\n]*\nInstall a newer"):
        results.read_metrics(path)


def test_missing_file_has_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(results.MissingResultError, match="no such file"):
        results.read_metrics(tmp_path / "nothing.json")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    below_a_file = tmp_path / "file"
    below_a_file.write_text("")
    for path in (tmp_path, loop, fifo, below_a_file / "m.json", tmp_path / ("n" * 300)):
        with pytest.raises(results.ResultsError, match="cannot be read"):
            results.read_metrics(path)


def test_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")  # root may read everything: simulated

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(results.ResultsError, match="cannot be read: Permission denied"):
        results.read_metrics(tmp_path / "m.json")


def test_too_large_file_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    with path.open("wb") as stream:
        stream.truncate(strict_json.MAX_BYTES + 1)
    with pytest.raises(results.ResultsError, match="larger than 67108864 bytes"):
        results.read_metrics(path)


# --- Writing -------------------------------------------------------------------------------------


def test_file_lands_exactly_where_asked_with_umask_permissions(tmp_path: Path) -> None:
    """H7: exactly at the path asked for, nothing beside it."""
    path = results.metrics_path(tmp_path / "new", "m", "b", 42)
    assert path == tmp_path / "new" / "m" / "b-seed42.json"
    old = os.umask(0o027)
    try:
        results.write_metrics(path, build())
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(path.parent) == ["b-seed42.json"]


def test_invalid_document_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    results.write_metrics(path, build())
    before = path.read_bytes()
    with pytest.raises(results.ResultsError, match="schema"):
        results.write_metrics(path, {**build(), "host": "me"})
    assert path.read_bytes() == before


def test_unwritable_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "fifo.json").parent.joinpath("dir.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    for path in ("file/m.json", "dir.json", "fifo.json"):
        with pytest.raises(results.ResultsError, match="cannot be written"):
            results.write_metrics(tmp_path / path, build())
    assert sorted(os.listdir(tmp_path)) == ["dir.json", "fifo.json", "file"]


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.json"
    results.write_metrics(path, build())
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(results.ResultsError, match="No space left"):
        results.write_metrics(path, build(seed=43))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.json"]


def test_killed_writer_leaves_a_whole_file_and_no_litter(tmp_path: Path) -> None:
    """kill -9 in the middle of writing: old or new content, and the next write clears up."""
    path = tmp_path / "m.json"
    code = (
        "import sys, itertools, pathlib; from harness.atomic import atomic_write\n"
        "for i in itertools.count():\n"
        "    atomic_write(pathlib.Path(sys.argv[1]), (b'%d\\n' % (i % 10)) * 200_000)\n"
    )
    for delay in (0.0, 0.013, 0.03):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)])
        while not path.exists():
            time.sleep(0.005)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines = path.read_bytes().split(b"\n")
        assert len(lines) == 200_001
        assert len(set(lines[:-1])) == 1
    # A writer that died between opening and renaming, made certain:
    died = "import os, sys; from pathlib import Path; import harness.atomic as a\n"
    died += "a.os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
    died += "a.atomic_write(Path(sys.argv[1]), b'never')"
    assert subprocess.run([sys.executable, "-c", died, str(path)], check=False).returncode == -9
    assert len(os.listdir(tmp_path)) == 2
    atomic_write(path, b"whole")
    assert os.listdir(tmp_path) == ["m.json"]
    assert path.read_bytes() == b"whole"


# --- Run record and lines ------------------------------------------------------------------------


def test_run_record_is_null_where_unmeasured(tmp_path: Path) -> None:
    record = results.build_run_record(cell_id="ab" * 32, status="ok", durations={"rollout": 1.5})
    assert record["peak_memory"] == {"bytes": None, "scope": None, "processes": None}
    assert record["mlflow_run_id"] is None
    results.write_run_record(tmp_path / "run.json", record)
    assert results.read_run_record(tmp_path / "run.json") == record


def test_run_record_refuses_a_zero_that_means_unmeasured() -> None:
    with pytest.raises(results.ResultsError, match=r"peak_memory\.bytes breaks the run schema"):
        results.build_run_record(cell_id="ab" * 32, status="ok", peak_memory={"bytes": 0})


def test_metrics_file_is_no_run_record(tmp_path: Path) -> None:
    results.write_metrics(tmp_path / "m.json", build())
    with pytest.raises(results.ResultsError, match="breaks the run schema"):
        results.read_run_record(tmp_path / "m.json")


def test_lines_round_trip_and_bare_non_finite(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    results.write_lines(path, [{"loss": math.nan, "n": 1}, {"text": "a\u2028b"}])
    assert results.read_lines(path) == [{"loss": None, "n": 1}, {"text": "a\u2028b"}]
    path.write_text('{"a": 1}\n{"a": NaN}\n')
    with pytest.raises(results.ResultsError, match="NaN"):
        results.read_lines(path)


def test_importing_results_stays_light() -> None:
    """Reading results needs neither torch nor MLflow nor pandas (nor NumPy)."""
    heavy = ("torch", "mlflow", "pandas", "numpy")
    code = f"import sys, harness.results; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
