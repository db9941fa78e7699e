"""The smallest run that learns: a toy suite of one or two pages and a policy of 20 k parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from harness.seeding import HashSeeds
from methods.agent import make_policy
from methods.base import RunContext
from methods.config import (
    AttentionConfig,
    GRPOConfig,
    MethodConfig,
    PolicyShape,
    SupervisedConfig,
)
from methods.policy import SmallPolicy
from methods.supervised import train_supervised
from tests.methods.toy import ToySuite

SHAPE = PolicyShape(
    d_model=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, d_ff=64, pointer_dim=16
)


def tiny_suite() -> ToySuite:
    return ToySuite(pages=(1, 2), page_words=(4, 8), window=8)


def tiny_config(**changes: Any) -> MethodConfig:
    """A base of 80 steps (0.5 to 0.8 reward on the toy), RL with a high rate."""
    fields: dict[str, Any] = {
        "attention": AttentionConfig(),
        "shape": SHAPE,
        "supervised": SupervisedConfig(steps=80, batch_size=8, noisy_from=0.5),
        "grpo": GRPOConfig(groups=4, group_size=8, learning_rate=1e-3, checkpoint_every=2),
    }
    return MethodConfig(**fields | changes)


class Recorder:
    """Collects reported events; ``stop`` decides when to ask for a stop from what was seen."""

    def __init__(self, stop: Callable[[list[Mapping[str, Any]]], bool] | None = None) -> None:
        self.events: list[Mapping[str, Any]] = []
        self._stop = stop

    def report(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def should_stop(self) -> bool:
        return self._stop is not None and self._stop(self.events)

    def of(self, kind: str, phase: str | None = None) -> list[Mapping[str, Any]]:
        return [e for e in self.events if e["event"] == kind and phase in (None, e.get("phase"))]


def tiny_context(
    folder: Path,
    *,
    seed: int = 1,
    updates: int = 4,
    episodes: int = 16,
    cell: str = "cell",
    recorder: Recorder | None = None,
) -> RunContext:
    recorder = recorder or Recorder()
    return RunContext(
        seed=seed,
        episodes=episodes,
        updates=updates,
        cell_dir=folder / cell,
        base_dir=folder / "base",
        seeds=HashSeeds(seed),
        base_seeds=HashSeeds,
        report=recorder.report,
        should_stop=recorder.should_stop,
    )


def trained_policy(suite: ToySuite, config: MethodConfig, steps: int = 80) -> SmallPolicy:
    """A base policy without the cache on disk."""
    policy = make_policy(suite, config, config.base_attention, torch.Generator().manual_seed(0))
    supervised = SupervisedConfig(steps=steps, batch_size=8, noisy_from=0.5)
    train_supervised(policy, suite, supervised, HashSeeds(0), lambda event: None, lambda: False)
    return policy
