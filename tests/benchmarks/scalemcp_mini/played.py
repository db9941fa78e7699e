"""Scripted methods for benchmark tests: they play agents and hand over the episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.scalemcp_mini.experts import Agent, DoNothing
from benchmarks.scalemcp_mini.knobs import stable_hash
from methods.base import AgentOutcome, AgentSuite, Episode, RunContext


class Seeds:
    """A seed source for what asks for integers."""

    def integer(self, role: str, *path: int) -> int:
        return stable_hash(role, *path) >> 1

    def numpy(self, role: str, *path: int) -> Any:
        raise AssertionError(f"a scripted method has no use for a generator ({role})")

    torch = numpy


def episode_of(suite: AgentSuite, agent: Agent, env: Any, index: int) -> Episode:
    """An episode in the shape that a rollout leaves."""
    observation, _ = env.reset(options={"task_index": index})
    tokens: list[int] = []
    turns: list[tuple[int, int, str]] = []
    mask: list[bool] = []
    over = False
    while not over:
        action = agent.act(observation)
        for role, part in (
            ("observation", suite.codec.encode_observation(observation)),
            ("action", suite.codec.encode_action(action)),
        ):
            turns.append((len(tokens), len(tokens) + len(part), role))
            tokens += part
            mask += [role == "action"] * len(part)
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    measured = {
        "tokens": float(len(tokens)), "context_retained": 0.5,
        "kv_cache_peak_bytes": float(min(len(tokens), 72) * 10), "turns": len(turns) / 2,
    }  # fmt: skip
    return Episode(
        index, tokens, mask, [0.0] * len(tokens), [-1] * len(tokens), reward,
        info["metrics"] | measured, info["tier"], turns,
    )  # fmt: skip


class Scripted:
    """A method that plays scripted agents instead of training.

    Args:
        make: The agent of a task after RL.
        counters: What it says it counted.
        tamper: Changes the episodes after RL before they are handed over.
    """

    name, version, config = "scripted", "1", None

    def __init__(
        self,
        make: Callable[[Any, int], Agent],
        counters: dict[str, float] | None = None,
        tamper: Callable[[list[Episode]], list[Episode]] = list,
    ) -> None:
        self._make, self._counters, self._tamper = make, counters or {}, tamper

    def run_agent(self, suite: AgentSuite, context: RunContext) -> AgentOutcome:
        env = suite.make_env("heldout")
        indices = range(context.episodes)
        before = [episode_of(suite, DoNothing(), env, i) for i in indices]
        after = [episode_of(suite, self._make(env, i), env, i) for i in indices]
        return AgentOutcome(before, self._tamper(after), [{"loss": 0.0}], 7, self._counters)


def context(episodes: int) -> RunContext:
    """A run context that asks for some episodes."""
    return RunContext(
        seed=42, episodes=episodes, updates=7, cell_dir=Path(), base_dir=Path(), seeds=Seeds(),
        base_seeds=lambda _: Seeds(), report=lambda _: None, should_stop=lambda: False,
    )  # fmt: skip
