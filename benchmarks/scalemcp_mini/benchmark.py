"""The benchmark ``scalemcp-mini``: runs a method on the suite and says what it did.

Scores are those of the benchmark's own replay of every episode (``replay.py``), not the method's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from benchmarks.scalemcp_mini.knobs import SuiteConfig
from benchmarks.scalemcp_mini.measures import (
    METRIC_SPECS,
    SUMMARY,
    columns,
    counter_metrics,
    episode_metrics,
    mean,
)
from methods.base import (
    AgentOutcome,
    BenchmarkResult,
    Episode,
    Method,
    MetricSpec,
    MetricValue,
    RunContext,
)

if TYPE_CHECKING:
    from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv
    from benchmarks.scalemcp_mini.suite import ScaleMCPSuite

_EPISODES_SHOWN = 5


class ScaleMCPBenchmark:
    """``methods.base.Benchmark`` over a task configuration.

    Args:
        config: Decides the tasks; the default suite if None.
    """

    name: str = "scalemcp-mini"
    version: str = "1"
    metric_specs: Mapping[str, MetricSpec] = METRIC_SPECS
    summary: Sequence[tuple[str, str]] = SUMMARY
    default_episodes: int = 120
    default_updates: int = 120

    def __init__(self, config: SuiteConfig | None = None) -> None:
        self._config = config
        self._made: ScaleMCPSuite | None = None

    @property
    def suite(self) -> ScaleMCPSuite:
        """The suite, made on first use: listing benchmarks needs neither sqlite nor gymnasium."""
        if self._made is None:
            from benchmarks.scalemcp_mini.suite import ScaleMCPSuite

            self._made = ScaleMCPSuite(self._config)
        return self._made

    @property
    def max_episodes(self) -> int:
        """The held-out tasks: an evaluation visits each at most once."""
        return self.suite.num_tasks("heldout")

    def data_fingerprint(self) -> str:
        """SHA-256 (hex) over catalogs of all seeds, knobs, vocabulary and environment version."""
        return self.suite.fingerprint

    def run(self, method: Method, context: RunContext) -> BenchmarkResult:
        """Train and evaluate ``method``; floors and ceiling are played on the same tasks.

        Raises:
            ValueError: If there are fewer held-out tasks than episodes asked for, the episodes
                are not of as many distinct tasks in ascending order, the same before and after RL,
                or an episode is not what its actions lead to (see ``Replayer.score``).
        """
        available = self.max_episodes
        if not 1 <= context.episodes <= available:
            raise ValueError(
                f"episodes is {context.episodes}; {self.name} has 1 to {available} held-out tasks; "
                f"use --episodes {min(max(context.episodes, 1), available)}"
            )
        outcome = method.run_agent(self.suite, context)
        with closing(self._own_env()) as env:
            indices, before_rl, after_rl = _scored(env, method.name, outcome, context.episodes)
            references, reference_samples = _references(env, indices, context)
        table, before = columns(after_rl), columns(before_rl)
        samples = table | {f"base_{name}": before[name] for name in _BASE_COLUMNS}
        metrics = episode_metrics(after_rl, table)
        for name in _BASE_COLUMNS:
            metrics[f"base_{name}"] = mean(before[name], "the base policy was not evaluated")
        metrics |= counter_metrics(outcome.counters, outcome.updates)
        samples["task_index"] = [float(index) for index in indices]
        return BenchmarkResult(
            metrics=metrics | references,
            samples=samples | reference_samples,
            history=outcome.history,
            trajectories=self._trajectories(after_rl),
        )

    def _own_env(self) -> ScaleMCPMiniEnv:
        """A held-out environment that shares nothing with those that a method was given."""
        from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv

        return ScaleMCPMiniEnv("heldout", self._config)

    def _trajectories(self, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
        """Up to five episodes turn by turn: the first of each tier, then the first ones."""
        first = {episode.tier: at for at, episode in reversed(list(enumerate(episodes)))}
        chosen = list(dict.fromkeys([*sorted(first.values()), *range(len(episodes))]))
        return [self._render(episodes[at]) for at in sorted(chosen[:_EPISODES_SHOWN])]

    def _render(self, episode: Episode) -> dict[str, Any]:
        """A JSON-ready episode; all of the reward comes with the last action."""
        last = max((i for i, turn in enumerate(episode.turns) if turn[2] == "action"), default=-1)
        turns = [
            {
                "role": role,
                "text": self.suite.codec.decode_text(episode.tokens[start:stop]),
                "tokens": [start, stop],
                "reward": episode.reward if number == last else 0.0,
            }
            for number, (start, stop, role) in enumerate(episode.turns)
        ]
        return {
            "task_index": episode.task_index,
            "tier": episode.tier,
            "reward": episode.reward,
            "metrics": dict(sorted(episode.metrics.items())),
            "turns": turns,
        }


def _scored(
    env: ScaleMCPMiniEnv, method: str, outcome: AgentOutcome, count: int
) -> tuple[list[int], list[Episode], list[Episode]]:
    """Task indices, and the episodes before and after RL with the scores of their replay."""
    from benchmarks.scalemcp_mini.replay import Replayer

    replayer = Replayer(env, method)
    before = replayer.check_tasks(outcome.base_episodes, count, "before RL")
    after = replayer.check_tasks(outcome.episodes, count, "after RL")
    if before != after:
        raise ValueError(
            f"method {method!r} evaluated other tasks after RL than before it; "
            "run_agent must return both in the same task order"
        )
    return (
        after,
        [replayer.score(episode, "before RL") for episode in outcome.base_episodes],
        [replayer.score(episode, "after RL") for episode in outcome.episodes],
    )


def _references(
    env: ScaleMCPMiniEnv, indices: Sequence[int], context: RunContext
) -> tuple[dict[str, MetricValue], dict[str, list[float]]]:
    """Floors and ceiling on the given held-out tasks."""
    from benchmarks.scalemcp_mini.codec import shared_codec
    from benchmarks.scalemcp_mini.experts import Agent, DoNothing, OracleExpert, RandomAgent, play

    rows: dict[str, list[float]] = {"do_nothing": [], "random": [], "expert": []}
    for index in indices:
        rng = random.Random(context.seeds.integer("floor-random", index))
        agents: dict[str, Agent] = {
            "do_nothing": DoNothing(),
            "random": RandomAgent(shared_codec(), rng),
            "expert": OracleExpert(env),
        }
        for name, agent in agents.items():
            rows[name].append(play(env, agent, index)["joint_success"])
    samples = {f"{name}_joint_success": row for name, row in rows.items()}
    return {name: mean(row, "no task was evaluated") for name, row in samples.items()}, samples


_BASE_COLUMNS = ("joint_success", "answer_accuracy")

BENCHMARK = ScaleMCPBenchmark()
