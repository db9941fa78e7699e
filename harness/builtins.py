"""The methods and benchmarks that come with the harness, as lazy strings, and all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.packages import register_installed
from harness.plugins import load_plugin, without_repeats
from harness.registry import Registry
from methods.base import Benchmark, Method

ORIGIN = "built in"

_METHODS = (
    (
        "sinkflex-rl",
        "methods.sinkflex_rl:METHOD",
        "1",
        "GRPO through sink-aware windowed attention: sink tokens, sink logits, linear memory",
    ),
    (
        "eager-attention",
        "methods.eager_attention:METHOD",
        "1",
        "the same policy and mask through materialised T x T attention and a full cache",
    ),
    (
        "no-sink",
        "methods.no_sink:METHOD",
        "1",
        "base and RL without sinks, window widened to see as many positions",
    ),
    (
        "dropped-sink",
        "methods.dropped_sink:METHOD",
        "1",
        "sinkflex-rl's base with its sinks dropped afterwards, as a sink-blind kernel would",
    ),
    (
        "tokens-only",
        "methods.tokens_only:METHOD",
        "1",
        "sink tokens kept, no learned sink logits",
    ),
)

_BENCHMARKS = (
    (
        "scalemcp-mini",
        "benchmarks.scalemcp_mini.benchmark:BENCHMARK",
        "1",
        "find, ask consent for and call MCP tools in a catalog that changes (after arXiv 2505.06416)",
    ),
)


@dataclass(frozen=True)
class Registries:
    """All known methods and benchmarks of one process."""

    methods: Registry[Method] = field(default_factory=lambda: Registry("method"))
    benchmarks: Registry[Benchmark] = field(default_factory=lambda: Registry("benchmark"))


def registries(plugins: Sequence[Path] = ()) -> Registries:
    """The built-in parts, those of installed packages, and those of the given plugin files.

    Raises:
        RegistryError: If a plugin cannot be loaded, or brings a name that is taken. What is wrong with
            an installed package is raised when its part is asked for.
    """
    known = Registries()
    for name, target, version, description in _METHODS:
        known.methods.register(
            name, target, version=version, origin=ORIGIN, description=description
        )
    for name, target, version, description in _BENCHMARKS:
        known.benchmarks.register(
            name, target, version=version, origin=ORIGIN, description=description
        )
    register_installed(known.methods, known.benchmarks)
    for path in without_repeats(plugins):
        load_plugin(path, known.methods, known.benchmarks)
    return known
