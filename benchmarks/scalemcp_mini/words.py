"""The closed set of words that the suite speaks: names, metrics, codes and status words.

Companies are a prefix word and a suffix word, so that near misses share a word. Numbers are written
as two two-digit codes; handles use the same codes, so that neither looks special to a policy.
"""

from __future__ import annotations

from typing import Final

PREFIXES: Final = (
    "acme",
    "apex",
    "atlas",
    "aurora",
    "beacon",
    "birch",
    "cedar",
    "cobalt",
    "copper",
    "coral",
    "crest",
    "delta",
    "ember",
    "falcon",
    "granite",
    "harbor",
    "indigo",
    "juniper",
    "keystone",
    "lumen",
    "maple",
    "nimbus",
    "onyx",
    "pioneer",
    "quartz",
    "raven",
    "summit",
    "vertex",
)
SUFFIXES: Final = (
    "airlines",
    "bank",
    "biotech",
    "brands",
    "builders",
    "cable",
    "chemical",
    "dairy",
    "energy",
    "foods",
    "freight",
    "gaming",
    "health",
    "hotels",
    "insurance",
    "labs",
    "logistics",
    "media",
    "metals",
    "mining",
    "motors",
    "paper",
    "pharma",
    "rail",
    "retail",
    "software",
    "steel",
    "telecom",
)
METRICS: Final = (
    "revenue",
    "net-income",
    "net-debt",
    "gross-profit",
    "gross-margin",
    "operating-income",
    "operating-margin",
    "total-assets",
    "total-debt",
    "cash-flow",
    "dividends",
    "headcount",
)
NOTES: Final = (
    "adjusted",
    "annual",
    "audited",
    "certified",
    "consolidated",
    "disclosed",
    "filed",
    "official",
    "published",
    "reported",
    "restated",
    "verified",
)
YEARS: Final = tuple(range(2015, 2025))
CODES: Final = tuple(f"{n:02d}" for n in range(100))
MAX_VALUES: Final = 5
COUNTERS: Final = tuple(f"#{n}" for n in range(MAX_VALUES + 1))

VERBS: Final = ("search", "call", "ask", "answer")
ERROR_CODES: Final = ("stale", "unknown", "consent", "refused", "invalid", "over")
KINDS: Final = ("need", "page", "ok", "error", "granted", "done")

NUM_HANDLES: Final = len(CODES) ** 2
VALUE_RANGE: Final = len(CODES) ** 2


def code_words(number: int) -> str:
    """A number in 0..9999 as two code words, for example ``1207 -> "12 07"``."""
    return f"{CODES[number // 100]} {CODES[number % 100]}"


def handle_name(number: int) -> str:
    """A number in 0..9999 as an opaque tool handle, for example ``1207 -> "12-07"``."""
    return f"{CODES[number // 100]}-{CODES[number % 100]}"
