"""Metrics files and run folders made by hand, to say exactly what a report is made of."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import results
from harness.documents import build_run_record

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "metrics"


def entry(
    value: float | None,
    *,
    unit: str = "share",
    direction: str = "maximize",
    n: int = 4,
    stderr: float | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    made = {"value": value, "unit": unit, "direction": direction, "n": n, "stderr": stderr}
    return made if reason is None else {**made, "reason": reason}


def document(
    method: str,
    benchmark: str,
    seed: int,
    metrics: Mapping[str, dict[str, Any]] | None = None,
    *,
    samples: Mapping[str, Sequence[float | None]] | None = None,
    error: tuple[str, str] | None = None,
    budget: Mapping[str, Any] | None = None,
    version: str = "1",
    fingerprint: str = "ab" * 32,
) -> dict[str, Any]:
    """A metrics document; with ``error`` that of a failed cell."""
    budget = dict(budget or {"episodes": 120, "updates": 120})
    name = f"{method}/{benchmark}/{seed}/{sorted(budget.items())}"
    return {
        "schema_version": 1,
        "cell_id": hashlib.sha256(name.encode()).hexdigest(),
        "method": {"name": method, "version": version, "config": {}},
        "benchmark": {"name": benchmark, "version": "1", "data_fingerprint": fingerprint},
        "seed": seed,
        "budget": budget,
        "status": "ok" if error is None else "failed",
        "metrics": dict(metrics or {}),
        "samples": {name: list(column) for name, column in (samples or {}).items()},
        "error": None if error is None else {"type": error[0], "message": error[1]},
    }


def success(method: str, seed: int, successes: Sequence[int], **extra: Any) -> dict[str, Any]:
    """A cell of a benchmark with a floor, a ceiling, tiers, a cost and a state before training.

    Args:
        method: Its name.
        seed: Its seed.
        successes: 0 or 1 a task; the first half are tier 1.
        extra: As in ``document``.
    """
    n = len(successes)
    half = n // 2
    before = [float(i % 4 == 0) for i in range(n)]
    rate = sum(successes) / n
    metrics = {
        "success": entry(rate, n=n, stderr=0.1),
        "base_success": entry(sum(before) / n, n=n),
        "success_tier_1": entry(sum(successes[:half]) / half, n=half),
        "success_tier_2": entry(sum(successes[half:]) / (n - half), n=n - half),
        "do_nothing_success": entry(0.0, direction="neutral", n=n),
        "expert_success": entry(1.0, direction="neutral", n=n),
        "average_cost": entry(4.0 + rate + seed % 3, unit="calls", direction="minimize", n=n),
    }
    samples = {
        "success": [float(item) for item in successes],
        "base_success": before,
        "task_index": [float(i) for i in range(n)],
    }
    return document(
        method, extra.pop("benchmark", "bench"), seed, metrics, samples=samples, **extra
    )


def sweep(method: str, sizes: Mapping[int, float | None], how: str = "cuda") -> dict[str, Any]:
    """A memory sweep's cell: bytes at each length, None where memory ran out."""
    metrics = {
        f"peak_bytes_{how}_at_{tokens}": entry(
            size,
            unit="bytes",
            direction="minimize",
            reason=None if size is not None else "oom: above the cap",
        )
        for tokens, size in sizes.items()
    }
    return document(method, "memory-sweep", 42, metrics, budget={"episodes": 1, "updates": 0})


def write_metrics(directory: Path, *documents: Mapping[str, Any]) -> Path:
    """Put metrics documents where the command puts them."""
    for made in documents:
        path = results.metrics_path(
            directory, made["method"]["name"], made["benchmark"]["name"], made["seed"]
        )
        results.write_metrics(path, made)
    return directory


def write_run(runs: Path, made: Mapping[str, Any], *, updates: int = 60, **record: Any) -> Path:
    """A run folder of a document, with a learning curve."""
    name = f"{made['benchmark']['name']}-seed{made['seed']}-{made['cell_id'][:12]}"
    folder = runs / made["method"]["name"] / name
    rng = random.Random(made["cell_id"])
    top = made["metrics"].get("success", {"value": 0.5})["value"] or 0.1
    rows = [
        {
            "update": float(update + 1),
            "reward": 0.2 + top * (1 - math.exp(-update / 25)) + rng.gauss(0, 0.05),
            "seconds_rollout": rng.random(),
        }
        for update in range(updates)
    ]
    results.write_lines(folder / "history.jsonl", rows)
    results.write_run_record(
        folder / "run.json",
        build_run_record(
            cell_id=made["cell_id"],
            **{
                "status": "ok",
                "durations": {"total": 61.5},
                "device": "cpu (AVX2)",
                "peak_memory": {"bytes": 2**30, "scope": "a test", "processes": 2},
                **record,
            },
        ),
    )
    return folder


def three_methods() -> list[dict[str, Any]]:
    """Two methods with three seeds each and one with a single seed; nothing failed."""
    made = []
    for seed in (42, 43, 44):
        made.append(success("windowed", seed, [1, 1, 1, 1, 1, 0, 1, seed % 2]))
        made.append(success("eager-attention", seed, [1, 1, 0, 1, 0, 1, seed % 2, 0]))
    return [*made, success("plain", 42, [1, 0, 0, 1, 0, 0, 0, 0])]


class Make:
    """The builders, for tests (a conftest cannot be imported)."""

    entry = staticmethod(entry)
    document = staticmethod(document)
    success = staticmethod(success)
    sweep = staticmethod(sweep)
    write_metrics = staticmethod(write_metrics)
    write_run = staticmethod(write_run)
    three_methods = staticmethod(three_methods)
    committed = COMMITTED


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """Documents, written and read back as a report reads them."""
    from harness.reporting.data import load_report_data

    def read(*documents: Mapping[str, Any], against: str | None = "eager-attention") -> Any:
        directory = write_metrics(tmp_path / "metrics", *documents)
        return load_report_data(directory, tmp_path / "runs", against=against)

    return read
