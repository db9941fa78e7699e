"""Tasks: what is asked, in which world. A task is a pure function of (config, split, index)."""

from __future__ import annotations

import operator
import random
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.scalemcp_mini.catalog import Catalog, Pair, build_catalog
from benchmarks.scalemcp_mini.knobs import Difficulty, SuiteConfig, stable_hash, uniforms
from benchmarks.scalemcp_mini.words import YEARS
from methods.base import Split

TIERS = tuple(f"tier_{n}" for n in range(1, 6))
_GOLDEN = 11400714819323198485  # 2**64 / golden ratio, odd
KINDS = ("one value", "two companies", "two metrics", "three values", "four values", "five values")


@dataclass(frozen=True, slots=True)
class Task:
    """One request and the world it is asked in.

    Args:
        split: Train or held-out.
        index: Position in the split.
        kind: One of ``KINDS``.
        catalog_seed: Which catalog.
        pairs: Requested (company, metric) pairs in the order of the request, all different.
        year: Requested year.
        seed: Decides the hidden state of every tool (see ``hidden``).
    """

    split: Split
    index: int
    kind: str
    catalog_seed: int
    pairs: tuple[Pair, ...]
    year: int
    seed: int

    @property
    def tier(self) -> str:
        """Difficulty tier: how many values are asked for."""
        return TIERS[len(self.pairs) - 1]


@dataclass(frozen=True, slots=True)
class Hidden:
    """What the agent cannot see about a tool in a task.

    Args:
        needs_consent: It answers only after the user has consented.
        changes: How often a catalog sync changes its handle (0 to 2), each just before a call.
        misses: How many exact searches do not find it (0 to 2).
        replaced: A change withdraws and replaces it rather than renames it.
    """

    needs_consent: bool
    changes: int
    misses: int
    replaced: bool


def hidden(task_seed: int, pair: Pair, d: Difficulty) -> Hidden:
    """Hidden state of a tool: a hash of (task seed, pair), so the same for a whole GRPO group."""
    consent, stale, miss, replaced = uniforms("hidden", task_seed, *pair)
    return Hidden(
        needs_consent=consent < d.consent,
        changes=(stale < d.stale) + (stale < d.stale * d.stale_again),
        misses=(miss < d.miss) + (miss < d.miss * d.miss_again),
        replaced=replaced < d.replaced,
    )


def pair_split(pair: Pair, heldout_share: float) -> Split:
    """The only split whose tasks may request a pair; the same in every catalog."""
    return "heldout" if uniforms("split", *pair)[0] < heldout_share else "train"


@dataclass(frozen=True)
class _Pool:
    """Pairs that a split may request in a catalog, and the same by company and by metric."""

    pairs: tuple[Pair, ...]
    same_company: dict[Pair, tuple[Pair, ...]]
    same_metric: dict[Pair, tuple[Pair, ...]]


class TaskSet:
    """The tasks of a suite. Immutable; safe to share between environments.

    Args:
        config: Decides everything.
    """

    def __init__(self, config: SuiteConfig) -> None:
        self.config = config

    def num_tasks(self, split: Split) -> int:
        """Number of tasks in a split."""
        d = self.config.difficulty
        return d.train_tasks if split == "train" else d.heldout_tasks

    def catalog_seeds(self, split: Split) -> tuple[int, ...]:
        """Catalog seeds of a split."""
        return self.config.train_catalogs if split == "train" else self.config.heldout_catalogs

    def catalog(self, seed: int) -> Catalog:
        """The catalog of a seed at this suite's size."""
        d = self.config.difficulty
        return build_catalog(seed, d.companies, d.metrics, d.notes, self.config.value_salt)

    def task(self, split: Split, index: int) -> Task:
        """Task ``index`` of a split.

        Raises:
            ValueError: If there is no such split, or ``index`` is no integer or out of range.
        """
        if split not in ("train", "heldout"):
            raise ValueError(f"unknown split {split!r}; allowed are 'train' and 'heldout'")
        allowed = f"split {split!r} has tasks 0 to {self.num_tasks(split) - 1}"
        try:
            number = -1 if isinstance(index, bool) else operator.index(index)
        except TypeError:
            number = -1
        if not 0 <= number < self.num_tasks(split):
            raise ValueError(f"task_index is {index!r}; {allowed}, given as an integer")
        index = number
        seed = stable_hash("task", self.config.root, split, index)
        rng = random.Random(seed)
        seeds = self.catalog_seeds(split)
        catalog_seed = seeds[int(rng.random() * len(seeds))]
        pool = _pool(self, split, catalog_seed)
        count = _pick_tier(index, self.config.difficulty.tier_weights)
        kind, pairs = _pick_pairs(rng, pool, count)
        year = YEARS[int(rng.random() * len(YEARS))]
        return Task(split, index, kind, catalog_seed, pairs, year, seed)


@lru_cache(maxsize=256)
def _pool(tasks: TaskSet, split: Split, catalog_seed: int) -> _Pool:
    share = tasks.config.difficulty.heldout_share
    pairs = tuple(p for p in tasks.catalog(catalog_seed).tools if pair_split(p, share) == split)
    if len(pairs) < 10:
        raise ValueError(
            f"split {split!r} of catalog {catalog_seed} has {len(pairs)} pairs to ask for; "
            "use a larger catalog or another heldout_share"
        )
    company = {p: tuple(q for q in pairs if q != p and q[0] == p[0]) for p in pairs}
    metric = {p: tuple(q for q in pairs if q != p and q[1] == p[1]) for p in pairs}
    return _Pool(pairs, company, metric)


def _pick_tier(index: int, weights: tuple[float, ...]) -> int:
    """Values asked for in task ``index``: a golden-ratio sequence through the tiers.

    Any run of consecutive tasks then holds the tiers nearly in proportion to their weights, so that
    a small evaluation has no empty tier by bad luck.
    """
    draw = (index * _GOLDEN % 2**64) / 2**64 * sum(weights)
    for count, weight in enumerate(weights, start=1):
        draw -= weight
        if draw < 0:
            return count
    return len(weights)


def _choose(rng: random.Random, options: tuple[Pair, ...]) -> Pair:
    return options[int(rng.random() * len(options))]


def _pick_pairs(rng: random.Random, pool: _Pool, count: int) -> tuple[str, tuple[Pair, ...]]:
    """A kind and ``count`` different pairs; from the second on, half share a word with another."""
    pairs = [_choose(rng, pool.pairs)]
    if count == 2:
        by_metric = rng.random() < 0.5 or not pool.same_company[pairs[0]]
        options = pool.same_metric[pairs[0]] if by_metric else pool.same_company[pairs[0]]
        if options:
            pairs.append(_choose(rng, options))
            return ("two companies" if by_metric else "two metrics"), tuple(pairs)
    while len(pairs) < count:
        base = pairs[int(rng.random() * len(pairs))]
        near = pool.same_company[base] + pool.same_metric[base] if rng.random() < 0.5 else ()
        pair = _choose(rng, near or pool.pairs)
        if pair not in pairs:
            pairs.append(pair)
    names = {1: "one value", 2: "two companies", 3: "three values", 4: "four values"}
    return names.get(count, "five values"), tuple(pairs)
