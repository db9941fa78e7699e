"""Every number that decides how hard the suite is, in frozen dataclasses, and nothing else.

The names say what a task contains; what the environment does with them is in ``env.py``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

ENV_VERSION: Final = "0"
ENV_ID: Final = f"ScaleMCPMini-v{ENV_VERSION}"

# Return of an episode: JOINT_REWARD if every value is right and the plan was kept, plus
# SHARE_REWARD times the share of right values. Bounded to [0, 1]; no other reward exists.
JOINT_REWARD: Final = 0.7
SHARE_REWARD: Final = 0.3


@dataclass(frozen=True)
class Difficulty:
    """How hard the tasks are.

    Args:
        companies: Companies (one MCP server each) in a catalog.
        metrics: Metrics (one tool each) a company; ``companies * metrics`` tools in all.
        page_size: Documents (k) on a search page.
        notes: Filler words in each document.
        consent: Share of tools that only answer once the user has consented.
        stale: Share of tools whose handle is changed by a catalog sync before their first call.
        stale_again: Share of those that change a second time.
        miss: Share of tools that the first exact search misses.
        miss_again: Share of those that the second exact search misses too.
        replaced: Share of changed tools that are withdrawn and replaced (new description) rather
            than renamed (same description).
        tier_weights: Relative frequency of tasks of 1, 2, 3, 4 and 5 values.
        turns_base: Turn limit = ``turns_base + turns_per_value * values``.
        turns_per_value: See ``turns_base``.
        heldout_share: Share of (company, metric) pairs that only held-out tasks request.
        train_tasks: Number of train tasks.
        heldout_tasks: Number of held-out tasks.
    """

    companies: int = 40
    metrics: int = 8
    page_size: int = 4
    notes: int = 1
    consent: float = 0.5
    stale: float = 0.4
    stale_again: float = 0.25
    miss: float = 0.25
    miss_again: float = 0.2
    replaced: float = 0.5
    tier_weights: tuple[float, ...] = (0.25, 0.25, 0.2, 0.15, 0.15)
    turns_base: int = 5
    turns_per_value: int = 6
    heldout_share: float = 0.3
    train_tasks: int = 2**20
    heldout_tasks: int = 1000

    def turn_limit(self, values: int) -> int:
        """Agent turns allowed in a task of ``values`` values, the answer included."""
        return self.turns_base + self.turns_per_value * values


@dataclass(frozen=True)
class Skill:
    """What a scripted expert does right, as probabilities drawn at each occasion.

    Args:
        asks_consent: Asks the user after a consent error.
        searches_again: Searches again after a stale handle or a page without the tool.
        gives_up: When it did not do the right thing: answers with what it has (otherwise it goes on
            with the next value).
        wrong_argument: Calls with a wrong year or a near-miss tool of the page.
        skips: Leaves out a value from the start.
    """

    asks_consent: float = 1.0
    searches_again: float = 1.0
    gives_up: float = 0.0
    wrong_argument: float = 0.0
    skips: float = 0.0


CLEAN_SKILL: Final = Skill()
NOISY_SKILL: Final = Skill(
    asks_consent=0.8, searches_again=0.8, gives_up=0.35, wrong_argument=0.02, skips=0.02
)


@dataclass(frozen=True)
class SuiteConfig:
    """Everything that decides the tasks.

    Args:
        difficulty: See ``Difficulty``.
        noisy_skill: Skill of the noisy expert.
        train_catalogs: Catalog seeds that train tasks are spread over (several, so that handles are
            not worth memorising).
        heldout_catalogs: Catalog seeds of the held-out tasks; disjoint from ``train_catalogs``.
        root: Seed of the tasks themselves.
        value_salt: Changes every value of every catalog and nothing else (twin worlds in tests).

    Raises:
        ValueError: If train and held-out share a catalog seed.
    """

    difficulty: Difficulty = field(default_factory=Difficulty)
    noisy_skill: Skill = NOISY_SKILL
    train_catalogs: tuple[int, ...] = (11, 12, 13, 14, 15, 16, 17, 18)
    heldout_catalogs: tuple[int, ...] = (97,)
    root: int = 0
    value_salt: str = ""

    def __post_init__(self) -> None:
        shared = sorted(set(self.train_catalogs) & set(self.heldout_catalogs))
        if shared:
            raise ValueError(
                f"train and held-out catalogs share the seeds {shared}; use disjoint seeds, "
                "otherwise held-out handles and values are seen in training"
            )


def stable_hash(*parts: object) -> int:
    """A 64-bit hash of ``parts`` (their ``str``), the same in every process and version."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def uniforms(*parts: object) -> tuple[float, float, float, float]:
    """Four numbers in [0, 1) that depend on ``parts`` only."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    a, b, c, d = (int.from_bytes(digest[i : i + 8], "big") / 2**64 for i in range(0, 32, 8))
    return a, b, c, d
