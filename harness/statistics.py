"""Intervals for means over seeds and for paired differences. SciPy is imported when one is asked for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 2000
"""Bootstrap resamples: the error of a 2.5 % tail is then 0.35 %, and thousands of rows take a second."""
SEED = 20_260_810
_BATCH_NUMBERS = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A mean and the interval around it, in the unit of the values.

    Args:
        mean: Of the values.
        low: Lower end.
        high: Upper end.
        n: Number of values.
    """

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Student's t interval of a mean, for example over seeds.

    Args:
        values: Finite numbers, taken as independent draws.
        confidence: Of the interval, in (0, 1).

    Returns:
        None for fewer than two values, which say nothing of their spread. Equal values give an
        interval without width.

    Raises:
        ValueError: If a value is not finite.
    """
    numbers = [float(value) for value in values]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("mean_interval needs finite values")
    n = len(numbers)
    if n < 2:
        return None
    mean = math.fsum(numbers) / n
    spread = statistics.stdev(numbers)
    if spread == 0.0:
        return Interval(mean, mean, mean, n)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired_interval(differences: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Bootstrap interval of a mean paired difference; see :func:`paired_intervals` for the rule.

    Args:
        differences: One finite number a pair.
        confidence: Of the interval, in (0, 1).

    Raises:
        ValueError: If there is no pair, or a difference is not finite.
    """
    import numpy as np

    rows = np.asarray(differences, dtype=np.float64).reshape(1, -1)
    means, lows, highs = paired_intervals(rows, confidence=confidence)
    return Interval(float(means[0]), float(lows[0]), float(highs[0]), rows.shape[1])


def paired_intervals(
    rows: NDArray[np.float64], *, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Bootstrap intervals of many mean paired differences at once.

    ``scipy.stats.bootstrap`` draws n pairs with replacement, ``RESAMPLES`` times, from a generator
    with a fixed seed, and the ends are the percentiles of the resampled means (Efron's percentile
    interval). All rows see the same draws: a row's interval depends, but for rounding, on the row
    alone and not on which others are compared in the same run. A single pair bounds nothing: its
    interval is infinite. Equal differences give an interval without width.

    Args:
        rows: [K, n], one comparison a row, one pair a column; finite.
        confidence: Of the intervals, in (0, 1).

    Returns:
        Means, lower and upper ends, each [K].

    Raises:
        ValueError: If n is 0 or a number is not finite.
    """
    import numpy as np

    k, n = rows.shape
    if n == 0 or not np.isfinite(rows).all():
        raise ValueError("paired intervals need at least one pair, and finite differences")
    if n == 1:
        return rows[:, 0].copy(), np.full(k, -math.inf), np.full(k, math.inf)
    # A power of two changes no digit, and keeps sums of the largest floats finite.
    scale = np.exp2(np.frexp(np.abs(rows).max(axis=1))[1].astype(np.float64) - 1)
    rows = rows / scale[:, None]
    means = rows.mean(axis=1)
    lows, highs = np.empty(k), np.empty(k)
    step = max(1, _BATCH_NUMBERS // RESAMPLES)
    for start in range(0, k, step):
        part = slice(start, start + step)
        lows[part], highs[part] = _percentiles(rows[part], confidence)
    constant = rows.min(axis=1) == rows.max(axis=1)
    for ends in (means, lows, highs):
        ends[constant] = rows[constant, 0]  # a mean of equal numbers may be off in its last bit
    return means * scale, lows * scale, highs * scale


def _percentiles(rows: NDArray[np.float64], confidence: float) -> tuple[Any, Any]:
    """Ends for a block of rows; resampling indices serves all rows with one set of draws."""
    import numpy as np
    from scipy.stats import bootstrap

    n = rows.shape[1]

    def resampled_means(indices: NDArray[np.int64], axis: int = -1) -> NDArray[np.float64]:
        """[K, B] means for [B, n] drawn indices, as counts times values: one matrix product."""
        drawn = np.atleast_2d(np.moveaxis(indices, axis, -1))
        offsets = np.arange(len(drawn))[:, None] * n
        counts = np.bincount((drawn.astype(np.int64) + offsets).ravel(), minlength=len(drawn) * n)
        sums: NDArray[np.float64] = rows @ counts.reshape(len(drawn), n).T.astype(np.float64)
        means: NDArray[np.float64] = sums / n  # last: sums of whole numbers stay exact
        return means.reshape((len(rows), *indices.shape[:-1]))

    found = bootstrap(
        (np.arange(n),),
        resampled_means,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH_NUMBERS // n),
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        **_generator(),
    )
    ends = found.confidence_interval
    return ends.low, ends.high


def _generator() -> dict[str, Any]:
    """The generator under the name that this SciPy knows it by (``rng`` since 1.15)."""
    import numpy as np
    import scipy

    version = tuple(int(part) for part in scipy.__version__.split(".")[:2])
    return {"rng" if version >= (1, 15) else "random_state": np.random.default_rng(SEED)}
