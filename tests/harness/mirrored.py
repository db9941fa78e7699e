"""Finished runs to mirror, and a look into MLflow's SQLite file without importing MLflow."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from harness import results, tracking
from methods.base import MetricSpec, MetricValue

NAMES = ["joint_success", "r/mean@1", "r/mean_at_1", "r/mean_x40_1", "undefined", "a//b", "ñ%"]
HISTORY = [{"update": step, "loss": 1.0 / (step + 1), "kl": float("nan")} for step in range(3)]
BOUND = 10.0


def finished_run(run_dir: Path, seed: int = 42) -> dict[str, Any]:
    """A finished run's files, and the arguments of ``finish``."""
    cell_id = f"{seed:064x}"
    document = results.build_metrics_document(
        cell_id=cell_id,
        method={"name": "sinkflex-rl", "version": "1", "config": {"grpo": {"clip": 0.2}, "x": "é"}},
        benchmark={"name": "scalemcp-mini", "version": "1", "data_fingerprint": "f"},
        seed=seed,
        budget={"episodes": 3, "updates": 3},
        specs={n: MetricSpec(n, "share", "maximize", None, None, "") for n in NAMES},
        values={
            name: MetricValue(float("nan") if name == "undefined" else index / 8, 3)
            for index, name in enumerate(NAMES)
        },
        samples={"joint_success": [0.0, 1.0]},
    )
    record = results.build_run_record(
        cell_id=cell_id,
        status="ok",
        started_at="2026-01-02T03:04:05+00:00",
        finished_at="2026-01-02T03:05:05+00:00",
        git_commit="c0ffee",
        git_dirty=False,
    )
    run_dir.mkdir(parents=True)
    results.write_run_record(run_dir / "run.json", record)
    results.write_metrics(run_dir / "metrics-file.json", document)
    (run_dir / "trajectories.jsonl").write_text('{"task": 0}\n')
    return {
        "run_dir": run_dir,
        "metrics_document": document,
        "run_record": record,
        "history": HISTORY,
        "artifacts": [run_dir / "trajectories.jsonl", run_dir / "gone.txt"],
    }


def rows(database: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def assert_one_warning(outcome: tracking.MirrorOutcome, seconds: float, run_dir: Path) -> None:
    assert not outcome.ok
    assert outcome.run_id is None
    assert seconds < BOUND
    assert "\n" not in outcome.message
    assert "Traceback" not in outcome.message
    assert f"auto-research track sync {run_dir}" in outcome.message


def timed(
    run: dict[str, Any], uri: str | None = None, *, ready: bool = True, timeout: float = BOUND
) -> tuple[tracking.MirrorOutcome, float]:
    """Finish a run whose child was started earlier, as a command does, and how long that took.

    Args:
        run: Arguments of ``finish``.
        uri: Tracking URI.
        ready: Wait until the child has opened the store, or has failed to: as long as a cell lasts
            at least, even when this machine is busy with other tests.
        timeout: Seconds that ``finish`` may take.
    """
    with tracking.Mirror.start(uri) as mirror:
        process = mirror._process
        assert process is not None
        assert process.stdout is not None
        while ready and b'"waiting"' not in mirror._buffer:
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            mirror._buffer += data
        began = time.monotonic()
        outcome = mirror.finish(**run, timeout=timeout)
        return outcome, time.monotonic() - began
