"""Whether a worsening could be noise: pairs of observations, and a bootstrap interval over them.

Pairs are tasks where both documents hold per-episode samples that make up the metric (their mean is
its value); else seeds, over all cells of the same method and benchmark that can be compared. Samples
whose mean is not the value say nothing about it (a maximum, or a value that was edited).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.collection import Key

MIN_PAIRS = 6
"""Below it an interval is shown and decides nothing: of five pairs all may lie on one side by chance."""

_MEAN_TOLERANCE = 1e-9
_ROUNDING = 1e-12
_TASK_COLUMN = "task_index"


def difference(baseline: float, candidate: float) -> float:
    """Candidate minus baseline, finite even for the largest floats of opposite signs."""
    found = float(candidate) - float(baseline)
    return found if math.isfinite(found) else math.copysign(sys.float_info.max, found)


@dataclass(frozen=True)
class Pairs:
    """Paired differences; positive is worse.

    Args:
        by: What makes a pair.
        worse_by: One number a pair.
    """

    by: Literal["task", "seed"]
    worse_by: Sequence[float]


@dataclass(frozen=True)
class Significance:
    """What the pairs say about a worsening.

    Args:
        by: What makes a pair.
        n: Number of pairs.
        low: Lower end of the interval of the mean difference (positive is worse); None where one
            pair leaves it open, like ``high``.
        high: Upper end.
        worse: The whole interval is worse than no difference.
        better: The whole interval is better than no difference.
        decides: There are enough pairs for the interval to decide.
    """

    by: Literal["task", "seed"]
    n: int
    low: float | None
    high: float | None
    worse: bool
    better: bool
    decides: bool


def pairs_of(
    metric: str,
    sign: float,
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    by_seed: Sequence[float],
) -> Pairs:
    """The pairs behind one metric of one cell.

    Args:
        metric: Its name.
        sign: +1 where larger is worse, else -1.
        baseline: The cell's document.
        candidate: The other document of the same cell.
        by_seed: Differences of the value over comparable seeds, candidate minus baseline.
    """
    tasks = _task_differences(metric, baseline, candidate)
    if tasks is not None:
        return Pairs("task", [sign * item for item in tasks])
    return Pairs("seed", [sign * item for item in by_seed])


def _task_differences(
    metric: str, baseline: Mapping[str, Any], candidate: Mapping[str, Any]
) -> list[float] | None:
    """Candidate minus baseline, task by task; None where samples cannot be paired."""
    old, new = baseline["samples"].get(metric), candidate["samples"].get(metric)
    if old is None or new is None or len(old) != len(new):
        return None
    if baseline["samples"].get(_TASK_COLUMN) != candidate["samples"].get(_TASK_COLUMN):
        return None  # other tasks, or another order
    if not (_makes_up(old, baseline["metrics"][metric]["value"])) or not (
        _makes_up(new, candidate["metrics"][metric]["value"])
    ):
        return None
    pairs = zip(old, new, strict=True)
    return [difference(a, b) for a, b in pairs if a is not None and b is not None] or None


def _makes_up(samples: Sequence[float | None], value: float) -> bool:
    """Whether a metric's value is the mean of its defined samples."""
    defined = [item for item in samples if item is not None]
    if not defined:
        return False
    mean = math.fsum(item / len(defined) for item in defined)
    return math.isclose(mean, value, rel_tol=_MEAN_TOLERANCE, abs_tol=_MEAN_TOLERANCE)


def significances(pairs: Sequence[Pairs], confidence: float) -> list[Significance]:
    """One verdict a comparison, all intervals of one length computed together."""
    import numpy as np

    from harness.statistics import paired_intervals

    found: list[Significance | None] = [None] * len(pairs)
    lengths: dict[int, list[int]] = {}
    for index, item in enumerate(pairs):
        lengths.setdefault(len(item.worse_by), []).append(index)
    for n, indices in lengths.items():
        rows = np.array([pairs[index].worse_by for index in indices], dtype=np.float64)
        _, lows, highs = paired_intervals(rows, confidence=confidence)
        scales = np.abs(rows).max(axis=1)
        for index, low, high, scale in zip(indices, lows, highs, scales, strict=True):
            found[index] = Significance(
                pairs[index].by,
                n,
                float(low) if math.isfinite(low) else None,
                float(high) if math.isfinite(high) else None,
                # An end of zero may come out a rounding error beside it.
                worse=bool(low > _ROUNDING * scale),
                better=bool(high < -_ROUNDING * scale),
                decides=n >= MIN_PAIRS,
            )
    return [item for item in found if item is not None]


class SeedSpreads:
    """How far a baseline's seeds lie apart: what a re-run on another machine may differ by.

    Args:
        documents: The baseline.
    """

    def __init__(self, documents: Mapping[Key, Mapping[str, Any]]) -> None:
        self._runs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self._known: dict[tuple[str, str, str], float | None] = {}
        for (method, benchmark, _), document in documents.items():
            if document["status"] == "ok":
                self._runs.setdefault((method, benchmark), []).append(document)

    def of(self, method: str, benchmark: str, metric: str) -> float | None:
        """Sample standard deviation over seeds; None where fewer than two seeds have a value.

        All seeds must be runs of one thing: the same versions, data, config and budget.
        """
        key = (method, benchmark, metric)
        if key not in self._known:
            self._known[key] = self._spread(self._runs.get((method, benchmark), []), metric)
        return self._known[key]

    def _spread(self, runs: Sequence[Mapping[str, Any]], metric: str) -> float | None:
        if any(
            run[part] != runs[0][part] for run in runs for part in ("method", "benchmark", "budget")
        ):
            return None
        entries = [run["metrics"].get(metric) for run in runs]
        values = [float(e["value"]) for e in entries if e is not None and e["value"] is not None]
        if len(values) < 2:
            return None
        center = values[0]  # squares of differences: no cancellation, and equal values give 0
        shifted = [difference(center, value) for value in values]
        mean = math.fsum(item / len(shifted) for item in shifted)
        try:
            return math.hypot(*(item - mean for item in shifted)) / math.sqrt(len(shifted) - 1)
        except OverflowError:
            return None
