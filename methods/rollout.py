"""Batched multi-turn generation: many episodes advance together, turn by turn.

A trajectory draws all its randomness from a generator of its own, so that an episode does not
depend on which others share its batch (beyond how a matrix product of another width rounds, about
1e-7 in a log-probability). Sampled ids and their log-probabilities are kept as sampled.

The last token of an action is not fed by itself: it goes in front of the next observation, which
saves a forward pass a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from methods.base import Episode, Grammar

if TYPE_CHECKING:
    import gymnasium

    from methods.base import AgentSuite, Codec, Split

_DRAWS = 64  # uniforms fetched at a time; a generator gives the same stream one by one
_DROP_SHARE = 8  # finished rows are dropped when they are at least 1/8 of the batch: a copy costs


class Cache(Protocol):
    """What the rollout reports of a session's cache."""

    @property
    def entry_bytes(self) -> int:
        """Bytes a position of one row takes."""
        ...

    def entries(self, length: int) -> int:
        """Positions held for a row that has seen ``length``."""
        ...


class GenerationSession(Protocol):
    """Cached generation of B trajectories (``methods.session.Session`` is the first)."""

    @property
    def cache(self) -> Cache:
        """The session's cache."""
        ...

    def extend(self, chunks: Sequence[Sequence[int]]) -> None:
        """Feed each row its chunk, which may be empty."""
        ...

    def step(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Feed one token to each of some rows."""
        ...

    def sample(
        self, states: np.ndarray, uniforms: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and log-probabilities for the rows that were fed last."""
        ...

    def select(self, rows: np.ndarray) -> None:
        """Keep only these rows."""
        ...


class GeneratingPolicy(Protocol):
    """A policy that can sample under a grammar."""

    @property
    def window(self) -> int:
        """W as it attends."""
        ...

    @property
    def num_sink_tokens(self) -> int:
        """S as it attends."""
        ...

    def session(self, batch_size: int, grammar: Grammar) -> GenerationSession:
        """Cached generation of ``batch_size`` trajectories."""
        ...


@dataclass
class _Row:
    """One trajectory under way."""

    order: int
    task_index: int
    env: gymnasium.Env[Any, Any]
    generator: np.random.Generator | None
    tokens: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    grammar_state: list[int] = field(default_factory=list)
    turns: list[tuple[int, int, str]] = field(default_factory=list)
    reward: float = 0.0
    draws: list[float] = field(default_factory=list)
    done: bool = False

    def uniform(self) -> float:
        """The trajectory's next number in [0, 1)."""
        if not self.draws:
            assert self.generator is not None
            self.draws = self.generator.random(_DRAWS).tolist()[::-1]
        return self.draws.pop()

    def observe(self, tokens: list[int]) -> None:
        """Append an observation."""
        start, count = len(self.tokens), len(tokens)
        self.tokens += tokens
        self.action_mask += [False] * count
        self.log_probs += [0.0] * count
        self.grammar_state += [-1] * count
        self.turns.append((start, start + count, "observation"))

    def act(self, tokens: list[int], log_probs: list[float], states: list[int]) -> None:
        """Append a sampled action."""
        start, count = len(self.tokens), len(tokens)
        self.tokens += tokens
        self.action_mask += [True] * count
        self.log_probs += log_probs
        self.grammar_state += states
        self.turns.append((start, start + count, "action"))


def generate(
    policy: GeneratingPolicy,
    suite: AgentSuite,
    split: Split,
    task_indices: Sequence[int],
    uniforms: Callable[[int], np.random.Generator] | Sequence[np.random.Generator] | None,
    *,
    greedy: bool = False,
    max_batch: int = 128,
    envs: Sequence[gymnasium.Env[Any, Any]] | None = None,
) -> list[Episode]:
    """One episode for each entry of ``task_indices``, in that order.

    Args:
        policy: What samples.
        suite: Tasks, environments, codec.
        split: Which split the indices refer to.
        task_indices: Tasks; the same one may come several times (a GRPO group).
        uniforms: The generator of each trajectory, as a sequence or as a function of its place in
            ``task_indices``; None is allowed when ``greedy``. One number is drawn a token.
        greedy: Take the most likely token instead of sampling.
        max_batch: Most trajectories at once.
        envs: Environments of this split to reuse; a list is filled up with those that were missing,
            so that the caller can keep it for the next call.

    Returns:
        Episodes. ``metrics`` holds the environment's terminal ``info["metrics"]`` and:
        ``tokens`` (T), ``turns`` (actions), ``context_retained`` (mean over sampled tokens of
        visible positions / positions so far, where t positions so far leave min(t, S + W)
        visible), ``kv_cache_peak_bytes`` (positions held for this episode when it ended times the
        bytes of one).

    Raises:
        ValueError: If generators are missing or ``max_batch`` < 1.
        RuntimeError: If an action is longer than the codec's ``max_action_tokens``, or an
            environment ends without ``info["metrics"]`` and ``info["tier"]``.
    """
    if max_batch < 1:
        raise ValueError(f"max_batch must be at least 1, got {max_batch}")
    generators = _generators(uniforms, len(task_indices), greedy)
    pool = envs if isinstance(envs, list) else list(envs or [])
    while len(pool) < min(max_batch, len(task_indices)):
        pool.append(suite.make_env(split))
    episodes: list[Episode] = []
    for start in range(0, len(task_indices), max_batch):
        places = range(start, min(start + max_batch, len(task_indices)))
        rows = [
            _Row(place, int(task_indices[place]), env, generators[place])
            for place, env in zip(places, pool, strict=False)
        ]
        episodes += _run(policy, suite.codec, rows, greedy=greedy)
    return episodes


def _generators(
    uniforms: Callable[[int], np.random.Generator] | Sequence[np.random.Generator] | None,
    count: int,
    greedy: bool,
) -> Sequence[np.random.Generator | None]:
    if uniforms is None:
        if not greedy:
            raise ValueError(
                "sampling needs a generator a trajectory: give uniforms, or greedy=True"
            )
        return [None] * count
    if callable(uniforms):
        return [uniforms(place) for place in range(count)]
    if len(uniforms) != count:
        raise ValueError(
            f"got {len(uniforms)} generators for {count} trajectories; give one for each entry of "
            "task_indices"
        )
    return uniforms


def _run(
    policy: GeneratingPolicy, codec: Codec, rows: list[_Row], *, greedy: bool
) -> list[Episode]:
    """Run one batch of trajectories to their ends."""
    session = policy.session(len(rows), codec.grammar)
    live, chunks = list(rows), []
    episodes: dict[int, Episode] = {}
    for row in live:
        observation, _ = row.env.reset(options={"task_index": row.task_index})
        row.observe(codec.encode_observation(observation))
        chunks.append(row.tokens[:])
    while True:
        session.extend(chunks)
        _sample_actions(session, codec, live, greedy)
        for place, row in enumerate(live):
            if row.done:
                continue
            info = _advance(row, codec)
            if row.done:
                episodes[row.order] = _finish(row, info, policy, session.cache)
                chunks[place] = []
            else:
                chunks[place] = row.tokens[row.turns[-1][0] - 1 :]
        keep = [place for place, row in enumerate(live) if not row.done]
        if not keep:
            return [episodes[row.order] for row in rows]
        if (len(live) - len(keep)) * _DROP_SHARE >= len(live):
            session.select(np.array(keep))
            live, chunks = [live[k] for k in keep], [chunks[k] for k in keep]


def _sample_actions(
    session: GenerationSession, codec: Codec, live: list[_Row], greedy: bool
) -> None:
    """Sample one whole action for every row that is not done."""
    grammar, limit = codec.grammar, codec.max_action_tokens
    active = np.array([place for place, row in enumerate(live) if not row.done])
    states = np.full(len(active), grammar.start)
    tokens = np.empty((limit, len(live)), dtype=np.int64)
    log_probs = np.empty((limit, len(live)))
    visited = np.empty((limit, len(live)), dtype=np.int64)
    counts = np.zeros(len(live), dtype=np.int64)
    for position in range(limit):
        draws = None if greedy else np.array([live[place].uniform() for place in active])
        sampled, log_prob = session.sample(states, draws)
        tokens[position, active], log_probs[position, active] = sampled, log_prob
        visited[position, active] = states
        counts[active] += 1
        states = grammar.next_state[states, sampled]
        going = states != grammar.final
        if not going.any():
            break
        if not going.all():
            active, states, sampled = active[going], states[going], sampled[going]
        if position + 1 < limit:
            session.step(active, sampled)
    else:
        raise RuntimeError(
            f"an action is not complete after max_action_tokens={limit} tokens: "
            f"{codec.decode_text(tokens[:, active[0]].tolist())!r}; the codec's grammar must end "
            "every action within its limit"
        )
    for place, row in enumerate(live):
        if not row.done:
            span = slice(0, int(counts[place]))
            row.act(
                tokens[span, place].tolist(),
                log_probs[span, place].tolist(),
                visited[span, place].tolist(),
            )


def _advance(row: _Row, codec: Codec) -> dict[str, Any]:
    """Carry out the row's newest action and append what it sees next."""
    start, stop, _ = row.turns[-1]
    action = codec.decode_action(row.tokens[start:stop])
    observation, reward, terminated, truncated, info = row.env.step(action)
    row.reward += float(reward)
    row.done = bool(terminated or truncated)
    if not row.done:
        row.observe(codec.encode_observation(observation))
    return info


def _finish(row: _Row, info: dict[str, Any], policy: GeneratingPolicy, cache: Cache) -> Episode:
    """The finished episode with what the rollout measured."""
    if "metrics" not in info or "tier" not in info:
        raise RuntimeError(
            f"the environment ended task {row.task_index} without info['metrics'] and "
            f"info['tier'] (info has {sorted(info)}); AgentSuite says what it must hold"
        )
    before = np.flatnonzero(row.action_mask)  # positions so far, when a token was sampled
    visible = np.minimum(before, policy.num_sink_tokens + policy.window)
    metrics = {name: float(value) for name, value in info["metrics"].items()}
    metrics |= {
        "tokens": float(len(row.tokens)),
        "turns": float(sum(role == "action" for _, _, role in row.turns)),
        "context_retained": float((visible / before).mean()),
        # the last token ends the episode and is never fed
        "kv_cache_peak_bytes": float(cache.entries(len(row.tokens) - 1) * cache.entry_bytes),
    }
    return Episode(
        task_index=row.task_index,
        tokens=row.tokens,
        action_mask=row.action_mask,
        log_probs=row.log_probs,
        grammar_state=row.grammar_state,
        reward=row.reward,
        metrics=metrics,
        tier=str(info["tier"]),
        turns=row.turns,
    )
