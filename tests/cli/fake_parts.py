"""A method and a benchmark that take no time, for tests of the machinery around them.

The method's behaviour comes from FAKE_BEHAVIOUR in the environment, so that one spec can fail in
many ways; it saves a checkpoint after every update, as a real one does.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

from methods.base import (
    BenchmarkResult,
    Interrupted,
    MetricSpec,
    MetricValue,
    RunContext,
)
from methods.team import Team, run_team

BEHAVIOUR = os.environ.get("FAKE_BEHAVIOUR", "")


@dataclass(frozen=True)
class Config:
    rate: float = 0.5
    sizes: tuple[int, ...] = (2, 3)


class FakeMethod:
    """A random walk with a checkpoint."""

    name = "fake"
    version = "1"
    config = Config()

    def run_agent(self, suite, context: RunContext):
        state = context.cell_dir / "walk.json"
        walk = json.loads(state.read_text()) if state.exists() else []
        for update in range(len(walk), context.updates):
            if context.should_stop() and BEHAVIOUR != "stubborn":
                raise Interrupted
            walk.append(float(context.seeds.numpy("walk", update).normal()))
            temp = state.with_suffix(".new")
            temp.write_text(json.dumps(walk))
            temp.replace(state)
            context.report(
                {
                    "event": "progress",
                    "phase": "rl",
                    "done": update + 1,
                    "total": context.updates,
                    "reward": walk[-1],
                }
            )
            if update + 1 == int(os.environ.get("FAKE_HOLD", "0")):
                hold(context)
        misbehave(BEHAVIOUR)
        return walk


def hold(context: RunContext) -> None:
    """Wait to be stopped or killed."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (BEHAVIOUR == "stubborn" or not context.should_stop()):
        time.sleep(0.02)


def misbehave(how: str) -> None:
    if how == "raise":
        raise RuntimeError("the reward model is on fire")
    if how == "path":
        raise RuntimeError(f"cannot open '{os.getcwd()}/x' or /srv/secret/place.bin")
    if how == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/srv/full/disk")
    if how == "exit":
        sys.exit(5)
    if how == "hard-exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "memory":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
        bytearray(2**33)
    if how == "member":
        run_team(2, fail_in_a_member)
    if how == "print":
        print("user code prints to stdout")


def fail_in_a_member(team: Team) -> None:
    if team.rank == 1:
        raise ValueError("what the member says")
    team.gather(None)


class FakeBenchmark:
    """Numbers out of thin air."""

    name = "thin-air"
    version = "1"
    default_episodes = 8
    default_updates = 3
    summary = (("before RL", "base_reward"), ("after RL", "reward"), ("cost", "cost"))
    metric_specs: ClassVar = {
        "reward": MetricSpec("reward", "points", "maximize", None, None, "Mean."),
        "base_reward": MetricSpec("base_reward", "share", "maximize", 0.0, 1.0, "Before."),
        "cost": MetricSpec("cost", "calls", "minimize", 0.0, None, "Calls."),
    }

    def data_fingerprint(self) -> str:
        return "ab" * 32

    def run(self, method, context: RunContext) -> BenchmarkResult:
        walk = method.run_agent(None, context)
        import torch

        # A long sum comes out differently with more threads or another instruction set.
        noise = torch.randn(300_001, generator=context.seeds.torch("noise"))
        weights = torch.randn(300, 300, generator=context.seeds.torch("weights"))
        offset = float(noise.sum()) + float((weights @ weights).softmax(-1).std())
        draws = context.seeds.numpy("episodes").normal(size=context.episodes) + sum(walk) + offset
        reward = math.nan if BEHAVIOUR == "nan" else float(draws.mean())
        metrics = {
            "reward": MetricValue(reward, context.episodes, 0.25),
            "base_reward": MetricValue(0.5, context.episodes),
            "cost": MetricValue(None, 0, reason="no calls were made"),
        }
        if BEHAVIOUR == "missing-metric":
            del metrics["cost"]
        samples = {"reward": [float(x) for x in draws]}
        if BEHAVIOUR == "nan":
            samples["reward"][0] = math.inf
        history = [{"update": float(i), "reward": x} for i, x in enumerate(walk)]
        return BenchmarkResult(metrics, samples, history, [{"turns": ["hello"]}])


METHODS = [FakeMethod()]
BENCHMARKS = [FakeBenchmark()]
