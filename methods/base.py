"""The contracts between methods, benchmarks and the harness.

This module is the only part of ``methods`` (besides ``methods.attention``) that a benchmark may
import, and it imports neither torch nor any sibling, so that listing and planning stay fast.

Shape legend used in this package: B batch (trajectories), T positions, V vocabulary, G grammar
states, H heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    import torch

Direction = Literal["maximize", "minimize", "neutral"]
Split = Literal["train", "heldout"]


class Interrupted(Exception):
    """The cell was asked to stop and has saved what it needs to continue.

    Raised by long loops when ``RunContext.should_stop()`` turns true, after their checkpoint is on
    disk. The worker turns it into exit code 130.
    """


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """What a metric means: every number a benchmark emits has one.

    Args:
        name: Key in the metrics JSON.
        unit: Plain unit, for example ``"share"``, ``"bytes"``, ``"tokens"``, ``"calls"``.
        direction: Which way is better; ``"neutral"`` describes and is never gated.
        lower: Smallest possible value, or None.
        upper: Largest possible value, or None.
        description: One sentence that defines the number exactly.
    """

    name: str
    unit: str
    direction: Direction
    lower: float | None
    upper: float | None
    description: str


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A measured value with its sample size.

    Args:
        value: The number, or None where it is undefined (``reason`` says why). Non-finite floats are
            turned into None with a reason when the metrics JSON is written.
        n: Number of samples behind it.
        stderr: Standard error of the mean (sample std, n-1), or None for n < 2 or where it has none.
        reason: Why ``value`` is None.
    """

    value: float | None
    n: int
    stderr: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Grammar:
    """Which token ids may follow while an action is written: a finite automaton.

    Args:
        allowed: bool [G, V]; ``allowed[g, v]`` when token v may be written in state g.
        next_state: int64 [G, V]; the state after it, -1 where not allowed.
        start: State in which every action begins.
        final: Absorbing state that is reached by an action's last token; nothing is allowed there.
    """

    allowed: np.ndarray
    next_state: np.ndarray
    start: int
    final: int


class Codec(Protocol):
    """A benchmark's translation between structured observations or actions and token ids."""

    version: str
    vocabulary: Sequence[str]
    pad_id: int
    grammar: Grammar
    max_action_tokens: int

    def encode_observation(self, observation: Any) -> list[int]:
        """Token ids of one observation, the marker that hands the turn to the agent included."""
        ...

    def encode_action(self, action: Any) -> list[int]:
        """Token ids of an action, its last end-of-action token included. Inverse of decode_action."""
        ...

    def decode_action(self, tokens: Sequence[int]) -> Any:
        """The structured action of a token sequence that the grammar accepts.

        Raises:
            ValueError: If the grammar does not accept ``tokens``.
        """
        ...

    def decode_text(self, tokens: Sequence[int]) -> str:
        """The tokens as a person reads them (trajectory files, replay)."""
        ...


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode of a scripted expert for supervised training.

    Args:
        tokens: T token ids: observations and actions as the policy would have seen them.
        action_mask: T booleans, True for the tokens that the agent wrote.
        train_mask: T booleans, True for the agent tokens worth imitating (subset of action_mask).
        grammar_state: T grammar states *before* each agent token, -1 elsewhere.
    """

    tokens: list[int]
    action_mask: list[bool]
    train_mask: list[bool]
    grammar_state: list[int]


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """How many positions a policy may attend to on a benchmark.

    Args:
        window: W, in positions, the query included.
        num_sink_tokens: S, the first positions of an episode that stay visible.
    """

    window: int
    num_sink_tokens: int


@runtime_checkable
class AgentSuite(Protocol):
    """A benchmark's tasks as a trainer sees them: no gold answer or plan is reachable from here.

    ``make_env`` gives a Gymnasium environment; ``reset(options={"task_index": i})`` selects the task
    (the same index is the same world, hidden state included, so that the members of a GRPO group
    face the same task); the scalar rewards of an episode sum to its return R; the terminal ``info``
    holds ``info["metrics"]``, a flat dict of floats, and ``info["tier"]``, a string.

    What is guarded and what is not: gold is out of a *policy's* reach, that is, in no observation,
    ``info`` or token before a call has earned it. A method is trusted code. It cannot come by gold,
    or publish a score of its own making, by accident: no public name leads to gold, and a benchmark
    scores by its own replay of the returned tokens. A hostile plugin, which runs in the same process
    and can read and change anything there, is out of scope; read a plugin before you run it.
    """

    name: str
    fingerprint: str
    codec: Codec
    context: ContextBudget

    def num_tasks(self, split: Split) -> int:
        """Number of tasks in a split; task indices run from 0."""
        ...

    def make_env(self, split: Split) -> gymnasium.Env[Any, Any]:
        """A fresh environment over a split; instances share no mutable state."""
        ...

    def demonstration(self, index: int, *, noisy: bool, seed: int) -> Demonstration:
        """A scripted expert's episode on train task ``index``; same arguments, same tokens."""
        ...


@dataclass
class Episode:
    """One finished trajectory as sampled: token ids are kept, never decoded and re-encoded.

    Args:
        task_index: Which task of the split.
        tokens: T ids.
        action_mask: T booleans, True where the policy sampled the token (loss mask).
        log_probs: T floats, log-probability under the sampling policy, 0 where not sampled.
        grammar_state: T grammar states before each sampled token, -1 where not sampled.
        reward: Return of the episode. For training; a benchmark replays the tokens to score them.
        metrics: The environment's terminal metrics, plus what the rollout measured. A benchmark
            takes from here only what no replay can tell (for example ``kv_cache_peak_bytes``).
        tier: Difficulty tier.
        turns: (start, stop, role) spans of ``tokens``; role is "observation" or "action".
    """

    task_index: int
    tokens: list[int]
    action_mask: list[bool]
    log_probs: list[float]
    grammar_state: list[int]
    reward: float
    metrics: dict[str, float]
    tier: str
    turns: list[tuple[int, int, str]]


@dataclass
class AgentOutcome:
    """What a method did on an agent suite.

    Args:
        base_episodes: Held-out episodes before RL, ``RunContext.episodes`` of them, of distinct
            tasks in ascending order.
        episodes: The same tasks after RL, same order.
        history: One flat dict of numbers an update (the learning curve).
        updates: Number of policy updates made.
        counters: Whole-run numbers, for example ``zero_variance_groups``, ``max_log_ratio_gap``.
    """

    base_episodes: list[Episode]
    episodes: list[Episode]
    history: list[dict[str, float]]
    updates: int
    counters: dict[str, float] = field(default_factory=dict)


class SeedSource(Protocol):
    """Explicit generators, each derived from the cell's seed and a role; there is no global RNG."""

    def integer(self, role: str, *path: int) -> int:
        """A 63-bit seed for (root seed, role, path)."""
        ...

    def numpy(self, role: str, *path: int) -> np.random.Generator:
        """A NumPy generator seeded with ``integer(role, *path)``."""
        ...

    def torch(self, role: str, *path: int) -> torch.Generator:
        """A CPU torch generator seeded with ``integer(role, *path)``."""
        ...


@dataclass(frozen=True)
class RunContext:
    """What a cell is given while it runs.

    Args:
        seed: The cell's seed (drives RL and evaluation; not the base policy).
        episodes: Held-out episodes to evaluate.
        updates: Policy updates to make.
        cell_dir: Folder of this cell for checkpoints and logs.
        base_dir: Shared cache of base policies.
        seeds: Generators derived from ``seed``.
        base_seeds: Makes the SeedSource of a base seed.
        report: Receives events: ``{"event": "progress", "phase": str, "done": int, "total": int}``
            plus optional numbers to show; ``{"event": "warning", "message": str}``; ``{"event":
            "waiting", "phase": str, "message": str}``; ``{"event": "resumed", "phase": str, "done":
            int}``; ``{"event": "memory", "bytes": [int, ...]}``, the peak resident set of each
            process that worked beside this one, which the run record adds to this one's own.
        should_stop: True once the user asked to stop; loops then save and raise ``Interrupted``.
    """

    seed: int
    episodes: int
    updates: int
    cell_dir: Path
    base_dir: Path
    seeds: SeedSource
    base_seeds: Callable[[int], SeedSource]
    report: Callable[[Mapping[str, Any]], None]
    should_stop: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one cell of a method occupies while it runs: a scheduler's units, not a limit.

    Args:
        cpus: Processor cores, >= 1.
        gpus: GPUs; a fraction shares one.
    """

    cpus: int = 1
    gpus: float = 0.0


class Method(Protocol):
    """A named recipe with a typed, frozen config.

    A method may also have ``resources``, a :class:`Resources`, by which cells are placed side by
    side; without it one core is counted.
    """

    name: str
    version: str

    @property
    def config(self) -> Any:
        """A frozen dataclass of JSON-ready fields: all that distinguishes this method."""
        ...

    def run_agent(self, suite: AgentSuite, context: RunContext) -> AgentOutcome:
        """Build or load the base policy, evaluate it, train by RL, evaluate again."""
        ...


@dataclass
class BenchmarkResult:
    """What a benchmark measured for one method.

    Args:
        metrics: One value for every name in the benchmark's ``metric_specs``.
        samples: Per-episode values behind the metrics, in task order.
        history: One flat dict of numbers an update.
        trajectories: JSON-ready episodes for people to read.
    """

    metrics: dict[str, MetricValue]
    samples: dict[str, list[float]]
    history: list[dict[str, float]]
    trajectories: list[dict[str, Any]]


class Benchmark(Protocol):
    """A named, versioned task set. Importing it and asking its fingerprint needs no torch."""

    name: str
    version: str
    metric_specs: Mapping[str, MetricSpec]
    summary: Sequence[tuple[str, str]]
    default_episodes: int
    default_updates: int

    @property
    def max_episodes(self) -> int | None:
        """Largest allowed ``RunContext.episodes``: usually the held-out tasks; None for no limit.

        More are refused before a cell is planned. A plain class attribute will do.
        """
        ...

    def data_fingerprint(self) -> str:
        """SHA-256 (hex) over everything that decides the tasks."""
        ...

    def run(self, method: Method, context: RunContext) -> BenchmarkResult:
        """Run one cell."""
        ...
