"""The tool catalog: companies x metrics, one MCP server a company, one MCP tool a metric.

ScaleMCP (arXiv 2505.06416, section 4) builds 5,000 servers for Fortune-1000 companies, one
financial metric each; this is the same shape at a size that is a knob.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

from benchmarks.scalemcp_mini.knobs import stable_hash
from benchmarks.scalemcp_mini.words import (
    METRICS,
    NOTES,
    NUM_HANDLES,
    PREFIXES,
    SUFFIXES,
    VALUE_RANGE,
    YEARS,
    handle_name,
)

Pair = tuple[str, str]
"""(company, metric), for example ``("harbor bank", "net-income")``."""


@dataclass(frozen=True)
class ToolDefinition:
    """One MCP tool as its server lists it.

    Args:
        name: Opaque handle, ``"12-07"``; unique in the catalog.
        company: Two words; also the server's name.
        metric: One vocabulary word (hyphenated where the metric has two words).
        notes: Filler words of the description.
    """

    name: str
    company: str
    metric: str
    notes: tuple[str, ...]

    @property
    def pair(self) -> Pair:
        """What the tool measures."""
        return self.company, self.metric

    def as_mcp(self) -> dict[str, Any]:
        """The definition as ``tools/list`` would send it (MCP 2025-06-18)."""
        return {
            "name": self.name,
            "description": f"{self.company.title()} {self.metric.replace('-', ' ')} "
            f"for one fiscal year: {', '.join(self.notes)} figure.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "year": {"type": "integer", "minimum": YEARS[0], "maximum": YEARS[-1]}
                },
                "required": ["year"],
                "additionalProperties": False,
            },
            "_meta": {"company": self.company, "metric": self.metric, "notes": list(self.notes)},
        }

    @classmethod
    def from_mcp(cls, definition: Mapping[str, Any]) -> ToolDefinition:
        """Inverse of ``as_mcp``."""
        meta = definition["_meta"]
        return cls(definition["name"], meta["company"], meta["metric"], tuple(meta["notes"]))

    @cached_property
    def canonical(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.as_mcp(), sort_keys=True, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical definition: what auto-sync compares."""
        return sha256(self.canonical.encode()).hexdigest()

    @cached_property
    def document(self) -> str:
        """The tool as words of a search page: company, metric, handle, notes."""
        return " ".join((self.company, self.metric, *self.name.split("-"), *self.notes))


@dataclass
class MCPServer:
    """A company's server: what it lists now. Only its owner changes it."""

    name: str
    tools: dict[str, ToolDefinition]

    def list_tools(self) -> list[ToolDefinition]:
        """Current definitions, in a fixed order."""
        return [self.tools[metric] for metric in sorted(self.tools)]

    def rename(self, metric: str, name: str) -> None:
        """Give a tool another handle and keep its description."""
        self.tools[metric] = replace(self.tools[metric], name=name)

    def replace_tool(self, metric: str, name: str, notes: tuple[str, ...]) -> None:
        """Withdraw a tool and list another, newly described one for the same metric."""
        self.tools[metric] = ToolDefinition(name, self.name, metric, notes)


@dataclass(frozen=True)
class Catalog:
    """An immutable set of tools and the values behind them.

    Args:
        seed: Decides names, handles, notes and values.
        tools: (company, metric) -> definition.
        value_salt: Changes the values only.
    """

    seed: int
    tools: Mapping[Pair, ToolDefinition]
    value_salt: str = ""
    handles: frozenset[str] = field(default=frozenset(), repr=False)

    def value(self, company: str, metric: str, year: int) -> int:
        """The figure, an int in 0..9999: SHA-256 of (seed, company, metric, year)."""
        return stable_hash("value", self.seed, self.value_salt, company, metric, year) % VALUE_RANGE

    def server(self, company: str) -> MCPServer:
        """A fresh, changeable server that lists the company's tools."""
        return MCPServer(company, dict(self._listings[company]))

    @cached_property
    def _listings(self) -> dict[str, dict[str, ToolDefinition]]:
        listings: dict[str, dict[str, ToolDefinition]] = {}
        for (company, metric), tool in self.tools.items():
            listings.setdefault(company, {})[metric] = tool
        return listings

    @cached_property
    def companies(self) -> tuple[str, ...]:
        """All company names, in catalog order."""
        return tuple(dict.fromkeys(company for company, _ in self.tools))


def _companies(rng: random.Random, count: int) -> list[str]:
    """Distinct two-word names from a small grid of words, so that each word is shared by several."""
    side = next(
        n for n in range(1, len(PREFIXES) + 1) if n * n >= min(2 * count, len(PREFIXES) ** 2)
    )
    prefixes, suffixes = rng.sample(PREFIXES, side), rng.sample(SUFFIXES, side)
    return rng.sample([f"{p} {s}" for p in prefixes for s in suffixes], count)


@lru_cache(maxsize=64)
def build_catalog(
    seed: int, companies: int, metrics: int, notes: int = 1, value_salt: str = ""
) -> Catalog:
    """The catalog of a seed and a size; the same arguments give the same catalog.

    Raises:
        ValueError: If there are not enough names, metrics or handles for that size.
    """
    limits = (
        (companies, len(PREFIXES) * len(SUFFIXES), "companies"),
        (metrics, len(METRICS), "metrics"),
    )
    for value, most, label in limits:
        if not 1 <= value <= most:
            raise ValueError(f"{label} is {value}; allowed is 1 to {most}")
    if not 0 <= notes <= 4:
        raise ValueError(f"notes is {notes}; allowed is 0 to 4")
    rng = random.Random(stable_hash("catalog", seed, companies, metrics))
    chosen = sorted(rng.sample(METRICS, metrics))
    pairs = [(company, metric) for company in _companies(rng, companies) for metric in chosen]
    if len(pairs) > NUM_HANDLES * 3 // 4:
        raise ValueError(
            f"{len(pairs)} tools leave too few of the {NUM_HANDLES} handles for renamed ones; "
            f"allowed is at most {NUM_HANDLES * 3 // 4} tools"
        )
    handles = [handle_name(n) for n in rng.sample(range(NUM_HANDLES), len(pairs))]
    tools = {
        pair: ToolDefinition(name, *pair, tuple(rng.sample(NOTES, notes)))
        for pair, name in zip(pairs, handles, strict=True)
    }
    return Catalog(seed, tools, value_salt, frozenset(handles))
