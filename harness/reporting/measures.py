"""What the metrics of a benchmark mean to each other, read from their names and directions alone.

A metrics file says of every number its unit and which way is better, and nothing else. A report of
any benchmark, also one from somebody else's package, needs to know a little more. These conventions
give it:

- ``base_M`` is M before training.
- ``W_M``, which is ``neutral`` where M is not, is M as a reference player W reaches it on the same
  tasks: a floor if W is one of ``FLOORS``, a ceiling if one of ``CEILINGS``, else a reference.
- ``M_tier_K`` is M on the tasks of tier K.
- ``cost`` or ``*_cost`` is what an episode costs; the first such that is better when smaller.
- ``peak_bytes[_HOW]_at_T`` and ``seconds[_HOW]_at_T`` are a sweep over lengths: see
  :mod:`harness.reporting.lengths`.

The headline metric of a benchmark is the one that has most of the first three beside it; equal
counts are decided by ``HEADLINES``, then by the alphabet.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.reporting.data import CellData, ReportData
from harness.reporting.lengths import is_at_length, tokens_of
from harness.reporting.text import slugs
from harness.statistics import Interval, mean_interval, paired_interval

FLOORS = ("do_nothing", "random", "floor")
CEILINGS = ("expert", "gold", "gold_replay", "oracle", "ceiling")
HEADLINES = ("joint_success", "success", "reward")
BEFORE = "base_"
_TIER = re.compile(r"(?P<metric>.+)_tier_(?P<tier>[^_]+)")
_MEAN_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Reference:
    """A reference player's metric.

    Args:
        metric: Its name, for example ``do_nothing_joint_success``.
        player: The player, in words.
        kind: ``"floor"``, ``"ceiling"`` or ``"reference"``.
    """

    metric: str
    player: str
    kind: str


@dataclass(frozen=True)
class Measured:
    """A metric of one method on one benchmark, over its seeds.

    Args:
        mean: Over the seeds that have a value.
        interval: 95 % Student t over seeds; None for one seed.
        seeds: How many seeds have a value.
        tasks: How many tasks a seed has behind it; the range where they differ.
    """

    mean: float
    interval: Interval | None
    seeds: int
    tasks: tuple[int, int]


@dataclass(frozen=True)
class Difference:
    """A mean paired difference.

    Args:
        interval: Of the mean, by bootstrap; its ends are infinite for a single pair.
        by: What makes a pair: ``"task"`` or ``"seed"``.
        seeds: How many seeds the pairs come from.
        same_sign: Whether every seed's difference has the mean's sign (false for a mean of 0).
    """

    interval: Interval
    by: str
    seeds: int
    same_sign: bool


class BenchmarkView:
    """The cells of one benchmark that were run the same way, and what their metrics mean.

    Args:
        name: The benchmark's name.
        label: How it is called in the report: with its setting if there are several.
        slug: For file names.
        cells: All of it, failed ones included, sorted.
        against: The method that others are compared with.
    """

    def __init__(
        self, name: str, label: str, slug: str, cells: Sequence[CellData], against: str | None
    ) -> None:
        self.name = name
        self.label = label
        self.slug = slug
        self.against = against
        self.cells = [cell for cell in cells if cell.ok]
        self.failed = [cell for cell in cells if not cell.ok]
        self.methods = sorted({cell.method for cell in cells})

    @functools.cached_property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Every metric name with an entry that has it: unit and direction."""
        found: dict[str, dict[str, Any]] = {}
        for cell in self.cells:
            for name, entry in cell.document["metrics"].items():
                found.setdefault(name, entry)
        return dict(sorted(found.items()))

    @functools.cached_property
    def headline(self) -> str | None:
        """The metric that the benchmark is about; None if nothing here has a better direction.

        A sweep over lengths has no such metric: the longest length that most cells reach stands in.
        """
        ranked = [name for name in self.entries if self.direction(name) != "neutral"]
        single = [name for name in ranked if not is_at_length(name)]
        if not single:
            return min(
                ranked, key=lambda name: (-self._having(name), -tokens_of(name)), default=None
            )
        known = {name: rank for rank, name in enumerate(HEADLINES)}
        return min(
            single, key=lambda name: (-self._companions(name), known.get(name, len(known)), name)
        )

    @property
    def is_sweep(self) -> bool:
        """Whether all that it measures is measured at sequence lengths."""
        ranked = [name for name in self.entries if self.direction(name) != "neutral"]
        return bool(ranked) and all(map(is_at_length, ranked))

    def _having(self, metric: str) -> int:
        return sum(cell.value(metric) is not None for cell in self.cells)

    def _companions(self, name: str) -> int:
        tiers = sum(tier_of(other, name) is not None for other in self.entries)
        return (BEFORE + name in self.entries) + tiers + len(self.references(name))

    def direction(self, metric: str) -> str:
        """``maximize``, ``minimize`` or ``neutral``, as the documents say."""
        return str(self.entries[metric]["direction"])

    def unit(self, metric: str) -> str:
        """The metric's unit."""
        return str(self.entries[metric]["unit"])

    def is_share(self, metrics: Iterable[str]) -> bool:
        """Whether these are shares between 0 and 1, so that an axis can show that whole range."""
        names = list(metrics)
        values = [value for cell in self.cells for name in names if (value := cell.value(name))]
        return {self.unit(name) for name in names} == {"share"} and all(0 <= v <= 1 for v in values)

    def references(self, metric: str) -> list[Reference]:
        """The reference players of a metric: floors, then others, then ceilings."""
        if self.direction(metric) == "neutral":
            return []
        found = []
        for name in self.entries:
            player = name.removesuffix(f"_{metric}")
            if player == name or self.direction(name) != "neutral":
                continue
            kind = "floor" if player in FLOORS else "ceiling" if player in CEILINGS else "reference"
            found.append(Reference(name, player.replace("_", " "), kind))
        rank = {"floor": 0, "reference": 1, "ceiling": 2}
        return sorted(found, key=lambda reference: (rank[reference.kind], reference.metric))

    def tiers(self, metric: str) -> list[tuple[str, str]]:
        """(tier, its metric) in order; numbers by size, before words."""
        found = [(tier, name) for name in self.entries if (tier := tier_of(name, metric))]
        return sorted(found, key=lambda pair: (not _is_digits(pair[0]), _size(pair[0]), pair[0]))

    @property
    def cost(self) -> str | None:
        """The metric that says what an episode costs."""
        named = (name for name in self.entries if name == "cost" or name.endswith("_cost"))
        return next((name for name in named if self.direction(name) == "minimize"), None)

    def of(self, method: str) -> list[CellData]:
        """A method's successful cells by seed."""
        return [cell for cell in self.cells if cell.method == method]

    def failed_of(self, method: str) -> list[CellData]:
        """A method's failed cells by seed."""
        return [cell for cell in self.failed if cell.method == method]

    def measured(self, method: str | None, metric: str) -> Measured | None:
        """A metric over the seeds of a method, or over all methods' (a reference player's).

        Methods play the same tasks of a seed, so a reference has one value a seed; where cells
        disagree, it is the mean of them.
        """
        by_seed: dict[int, list[float]] = {}
        sizes = []
        for cell in self.cells:
            value = cell.value(metric)
            if (method is None or cell.method == method) and value is not None:
                by_seed.setdefault(cell.seed, []).append(value)
                sizes.append(int(cell.document["metrics"][metric]["n"]))
        return over_seeds([mean_of(values) for _, values in sorted(by_seed.items())], sizes)

    def difference(self, method: str, metric: str) -> Difference | None:
        """``method`` minus ``against``, paired; None where there is nothing to pair."""
        if self.against is None or method == self.against:
            return None
        return paired(self.of(method), metric, self.of(self.against), metric)

    def gain(self, method: str, metric: str) -> Difference | None:
        """The metric minus the same before training, paired."""
        if BEFORE + metric not in self.entries:
            return None
        cells = self.of(method)
        return paired(cells, metric, cells, BEFORE + metric)


def views(data: ReportData) -> list[BenchmarkView]:
    """One view for every way in which a benchmark was run: numbers of different ways do not compare.

    The way with most cells comes first.
    """
    found: list[tuple[str, str, list[CellData]]] = []
    for benchmark in data.benchmarks:
        groups: dict[str, list[CellData]] = {}
        for cell in data.cells:
            if cell.benchmark == benchmark:
                groups.setdefault(setting(cell), []).append(cell)
        order = sorted(groups, key=lambda name: (-len(groups[name]), name))
        parts = [settings_of(groups[name][0]) for name in order]
        shared = set(parts[0]).intersection(*parts[1:])
        for name, own in zip(order, parts, strict=True):
            words = ", ".join(part for part in own if part not in shared)
            label = benchmark if len(order) == 1 else f"{benchmark} ({words or 'no budget'})"
            found.append((benchmark, label, groups[name]))
    names = slugs([label for _, label, _ in found])
    return [
        BenchmarkView(benchmark, label, slug, cells, data.against)
        for (benchmark, label, cells), slug in zip(found, names, strict=True)
    ]


def settings_of(cell: CellData) -> tuple[str, ...]:
    """What must be equal for two cells to compare, in words."""
    document = cell.document
    benchmark = document["benchmark"]
    budget = [f"{name} {value}" for name, value in sorted(document["budget"].items())]
    return (*budget, f"version {benchmark['version']}", f"data {benchmark['data_fingerprint']}")


def setting(cell: CellData) -> str:
    """``settings_of`` as one text."""
    return ", ".join(settings_of(cell))


def tier_of(name: str, metric: str) -> str | None:
    """K if ``name`` is ``metric`` on the tasks of tier K."""
    match = _TIER.fullmatch(name)
    return match["tier"] if match and match["metric"] == metric else None


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _size(text: str) -> int:
    return int(text) if _is_digits(text) else 0


def mean_of(values: Sequence[float]) -> float:
    """The mean; finite for all finite values."""
    return math.fsum(value / len(values) for value in values)


def over_seeds(values: Sequence[float], sizes: Sequence[int] = ()) -> Measured | None:
    """Mean and interval of one value a seed; None for no value."""
    if not values:
        return None
    try:
        interval = mean_interval(values)
    except OverflowError:  # the square of a number above 1e154
        interval = None
    return Measured(
        mean_of(values), interval, len(values), (min(sizes, default=0), max(sizes, default=0))
    )


def paired(
    cells: Sequence[CellData], metric: str, others: Sequence[CellData], other_metric: str
) -> Difference | None:
    """``metric`` minus ``other_metric``, by seed and, where both have samples, by task.

    A seed takes part if both sides have it with the same setting. Pairs are tasks if every seed
    has samples whose means are the two values: then the pairs' mean is the values' difference.
    Else they are seeds.
    """
    theirs = {cell.seed: cell for cell in others}
    by_task: list[float] | None = []
    by_seed: list[float] = []
    for cell in cells:
        other = theirs.get(cell.seed)
        if other is None or setting(cell) != setting(other):
            continue
        a, b = cell.value(metric), other.value(other_metric)
        if a is None or b is None:
            continue
        by_seed.append(_minus(a, b))
        tasks = task_differences(cell, metric, other, other_metric)
        by_task = None if by_task is None or tasks is None else by_task + tasks
    if not by_seed:
        return None
    pairs, by = (by_task, "task") if by_task else (by_seed, "seed")
    found = paired_interval(pairs)
    same = found.mean != 0 and all(item * found.mean > 0 for item in by_seed)
    return Difference(found, by, len(by_seed), same)


def _minus(a: float, b: float) -> float:
    found = float(a) - float(b)
    return found if math.isfinite(found) else math.copysign(sys.float_info.max, found)


def task_differences(
    cell: CellData, metric: str, other: CellData, other_metric: str
) -> list[float] | None:
    """Differences by task; None where samples are missing, of other tasks, or not the value's."""
    a, b = _samples(cell, metric), _samples(other, other_metric)
    if a is None or b is None or a.keys() != b.keys():
        return None
    pairs = ((value, b[task]) for task, value in a.items())
    return [_minus(x, y) for x, y in pairs if x is not None and y is not None] or None


def _samples(cell: CellData, metric: str) -> Mapping[float, float | None] | None:
    """Task -> value; tasks are the ``task_index`` samples, else positions.

    None unless the metric's value is their mean: a maximum over tasks, say, is not.
    """
    samples = cell.document["samples"]
    column = samples.get(metric)
    if column is None:
        return None
    defined = [item for item in column if item is not None]
    value = cell.value(metric)
    if not defined or value is None:
        return None
    mean = mean_of(defined)
    if not math.isclose(mean, value, rel_tol=_MEAN_TOLERANCE, abs_tol=_MEAN_TOLERANCE):
        return None
    tasks = samples.get("task_index", range(len(column)))
    if len(tasks) != len(column) or len(set(tasks)) != len(tasks) or None in tasks:
        return None
    return dict(zip(tasks, column, strict=True))
