"""Scores are those of the benchmark's replay, whatever a method says about itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.scalemcp_mini.benchmark import BENCHMARK
from benchmarks.scalemcp_mini.codec import shared_codec
from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv
from benchmarks.scalemcp_mini.experts import (
    Agent,
    DoNothing,
    FieldExpert,
    OracleExpert,
    RandomAgent,
)
from benchmarks.scalemcp_mini.knobs import NOISY_SKILL
from benchmarks.scalemcp_mini.replay import Replayer
from benchmarks.scalemcp_mini.suite import ScaleMCPSuite
from methods.agent import make_policy
from methods.base import Episode
from methods.config import AttentionConfig, MethodConfig, PolicyShape
from methods.rollout import generate
from tests.benchmarks.scalemcp_mini.played import Scripted, context, episode_of

CODEC = shared_codec()
AGENTS: dict[str, Callable[[Any, int], Agent]] = {
    "expert": lambda env, _: OracleExpert(env),
    "clean": lambda *_: FieldExpert(),
    "noisy": lambda _, i: FieldExpert(NOISY_SKILL, random.Random(i)),
    "random": lambda _, i: RandomAgent(CODEC, random.Random(i)),
    "nothing": lambda *_: DoNothing(),
}


def _replayer() -> Replayer:
    return Replayer(ScaleMCPMiniEnv("heldout"), "honest")


@pytest.mark.parametrize("agent", AGENTS)
def test_the_replay_of_an_honest_episode_is_the_episode(agent: str) -> None:
    suite, replayer = ScaleMCPSuite(), _replayer()
    env = suite.make_env("heldout")
    for index in range(40):
        episode = episode_of(suite, AGENTS[agent](env, index), env, index)
        assert replayer.score(episode, "after RL") == episode


def test_the_replay_of_a_sampled_episode_is_the_episode() -> None:
    suite = ScaleMCPSuite()
    shape = PolicyShape(
        d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=16, pointer_dim=8
    )
    config = MethodConfig(attention=AttentionConfig(), shape=shape)
    policy = make_policy(suite, config, config.attention, torch.Generator().manual_seed(0))
    tasks = [0, 3, 4, 17, 99, 999]
    episodes = generate(policy, suite, "heldout", tasks, np.random.default_rng)
    replayer = _replayer()
    assert [replayer.score(episode, "before RL") for episode in episodes] == episodes
    assert len({len(episode.turns) for episode in episodes}) > 1


def _forged(episode: Episode) -> Episode:
    claims = {"joint_success": 1.0, "plan_success": 1.0, "answer_accuracy": 1.0, "cost": 0.0}
    claims |= {"tokens": 1.0, "turns": 1.0, "made_up": 1.0}
    return replace(episode, reward=1.0, tier="tier_5", metrics=episode.metrics | claims)


def test_forged_scores_change_no_number() -> None:
    honest = BENCHMARK.run(Scripted(AGENTS["noisy"]), context(20))
    forged = BENCHMARK.run(
        Scripted(AGENTS["noisy"], tamper=lambda episodes: [_forged(e) for e in episodes]),
        context(20),
    )
    assert forged.metrics == honest.metrics
    assert repr(forged.samples) == repr(honest.samples)  # equal NaN included
    assert forged.trajectories == honest.trajectories
    assert (honest.metrics["joint_success"].value or 0.0) < 1.0


def test_what_only_the_rollout_knows_is_taken_from_it() -> None:
    def measured(episodes: list[Episode]) -> list[Episode]:
        return [replace(e, metrics={"kv_cache_peak_bytes": 640.0}) for e in episodes]

    result = BENCHMARK.run(Scripted(AGENTS["clean"], tamper=measured), context(5))
    assert result.metrics["kv_cache_peak_bytes"].value == 640.0
    assert result.metrics["context_retained"].value is None
    assert result.metrics["joint_success"].value == 1.0


@pytest.mark.parametrize("value", [-0.1, 1.1, float("inf"), "0.5", True])
def test_a_measurement_out_of_range_is_refused(value: Any) -> None:
    def claim(episodes: list[Episode]) -> list[Episode]:
        return [replace(e, metrics={"context_retained": value}) for e in episodes]

    with pytest.raises(ValueError, match=r"context_retained is .*finite number from 0 to 1"):
        BENCHMARK.run(Scripted(AGENTS["nothing"], tamper=claim), context(2))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda es: [es[0]] * len(es), "follows task 0; return episodes of distinct tasks"),
        (lambda es: [*es[:2], es[1], *es[3:]], "episode 2 is of task 1 and follows task 1"),
        (lambda es: es[::-1], "ascending order"),
        (lambda es: es[:-1], "7 episodes; 8 were asked for"),
        (lambda es: [], "0 episodes; 8 were asked for"),
        (lambda es: [*es[:-1], replace(es[-1], task_index=1000)], "integers 0 to 999"),
        (lambda es: [*es[:-1], replace(es[-1], task_index=7.0)], "is of task 7.0"),
        (lambda es: [*es[:-1], replace(es[-1], task_index=True)], "is of task True"),
        (lambda es: [*es[:-1], replace(es[-1], task_index=9)], "evaluated other tasks after RL"),
    ],
)
def test_an_evaluation_is_of_distinct_tasks_in_order(
    tamper: Callable[[list[Episode]], list[Episode]], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        BENCHMARK.run(Scripted(AGENTS["clean"], tamper=tamper), context(8))
    assert "'scripted'" in str(caught.value)


def _changed(episode: Episode, at: int, token: int) -> Episode:
    tokens = list(episode.tokens)
    tokens[at] = token
    return replace(episode, tokens=tokens)


def _shortened(episode: Episode, turns: int) -> Episode:
    kept = episode.turns[:-turns]
    return replace(episode, turns=kept, tokens=episode.tokens[: kept[-1][1]])


def _lengthened(episode: Episode) -> Episode:
    """One more observation and action than the environment allows."""
    end = len(episode.tokens)
    seen = CODEC.encode_observation({"text": "done"})
    more = seen + episode.tokens[slice(*episode.turns[-1][:2])]
    stop = end + len(seen)
    turns = [(end, stop, "observation"), (stop, end + len(more), "action")]
    return replace(episode, tokens=episode.tokens + more, turns=episode.turns + turns)


@pytest.mark.parametrize(
    ("tamper", "turn", "message"),
    [
        (lambda e: replace(e, tokens=[], turns=[]), 0, "it has 0 turns"),
        (lambda e: replace(e, turns=e.turns[:-1]), "last", "it has .* turns"),
        (lambda e: _changed(e, 3, e.tokens[3] + 1), 0, "token 3 of the observation"),
        (lambda e: _changed(e, e.turns[2][0], 1), 2, "token 0 of the observation is 1"),
        (lambda e: _changed(e, e.turns[1][0], 0), 1, "cannot continue an action"),
        (lambda e: _changed(e, e.turns[1][0], 10**9), 1, "cannot continue an action"),
        (lambda e: _shortened(e, 2), "last", "goes on after its last action"),
        (_lengthened, "over", "was over one turn before"),
        (lambda e: replace(e, tokens=[*e.tokens, 3]), "last", "it stops at token"),
        (lambda e: replace(e, turns=[(0, e.turns[1][1], "action"), *e.turns[1:]]), 0, "its span"),
        (lambda e: replace(e, turns=[("x", None, ""), *e.turns[1:]]), 0, "its span"),
    ],
)
def test_an_episode_is_what_its_actions_lead_to(
    tamper: Callable[[Episode], Episode], turn: int | str, message: str
) -> None:
    def tampered(episodes: list[Episode]) -> list[Episode]:
        changed.append(tamper(episodes[2]))
        turns.append(len(episodes[2].turns))
        return [*episodes[:2], changed[0], *episodes[3:]]

    changed: list[Episode] = []
    turns: list[int] = []
    with pytest.raises(ValueError, match=message) as caught:
        BENCHMARK.run(Scripted(AGENTS["clean"], tamper=tampered), context(4))
    last = len(changed[0].turns) - ("it has" not in message)
    number = {"last": last, "over": turns[0]}.get(str(turn), turn)
    assert "method 'scripted' after RL" in str(caught.value)
    assert f"task 2, turn {number}:" in str(caught.value)


def test_a_method_that_wraps_the_suites_environment_is_scored_in_the_real_one() -> None:
    class Generous(ScaleMCPMiniEnv):
        def step(self, action: Any) -> Any:
            observation, _, terminated, truncated, info = super().step(action)
            if "metrics" in info:
                info["metrics"] = dict.fromkeys(info["metrics"], 1.0)
            return observation, 1.0, terminated, truncated, info

    class Wrapping(Scripted):
        def run_agent(self, suite: Any, context: Any) -> Any:
            own = ScaleMCPSuite()
            own.make_env = Generous  # type: ignore[method-assign,assignment]
            return super().run_agent(own, context)

    result = BENCHMARK.run(Wrapping(AGENTS["nothing"]), context(4))
    assert result.metrics["joint_success"].value == 0.0
    assert result.trajectories[0]["reward"] == 0.0
