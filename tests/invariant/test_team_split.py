"""Splitting a cell over processes changes how sums round, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.seeding import HashSeeds
from methods.agent import make_policy
from methods.config import GRPOConfig
from methods.policy import SmallPolicy
from methods.supervised import demonstrations, train_supervised
from methods.team import Team, run_team
from methods.trainer import train
from tests.methods.tiny import tiny_config, tiny_context, tiny_suite, trained_policy

CONFIG = tiny_config(
    grpo=GRPOConfig(groups=4, group_size=5, minibatches=2, epochs=2, learning_rate=1e-3)
)


def _digest(policy: SmallPolicy) -> list[float]:
    return torch.cat([p.detach().flatten() for p in policy.parameters()]).tolist()


def _supervised(team: Team) -> dict[str, Any]:
    suite = tiny_suite()
    policy = make_policy(suite, CONFIG, CONFIG.base_attention, torch.Generator().manual_seed(0))
    losses = train_supervised(
        policy, suite, CONFIG.supervised, HashSeeds(0), lambda e: None, lambda: False, team
    )
    return {"losses": losses, "weights": team.gather(_digest(policy))}


def _rl(team: Team, folder: Path, start: dict[str, torch.Tensor]) -> dict[str, Any]:
    suite = tiny_suite()
    policy, reference = (make_policy(suite, CONFIG, CONFIG.attention) for _ in range(2))
    policy.load_state_dict(start)
    reference.load_state_dict(start)
    context = tiny_context(folder, updates=2, cell=f"size-{team.size}")
    result = train(policy, reference, suite, CONFIG.grpo, context, "spec", team)
    history = [
        {k: v for k, v in row.items() if not k.startswith("seconds_")} for row in result.history
    ]
    return {"history": team.gather(history), "weights": team.gather(_digest(policy))}


def test_members_share_a_steps_demonstrations_without_gap_or_overlap() -> None:
    suite, config = tiny_suite(), CONFIG.supervised
    alone = [demo.tokens for demo in next(demonstrations(suite, config, HashSeeds(0)))]
    shares = [
        [d.tokens for d in next(demonstrations(suite, config, HashSeeds(0), Team(rank, 3)))]
        for rank in range(3)
    ]
    assert Team(0, 3).interleave(shares) == alone


def test_supervised_training_is_the_same_over_any_number_of_processes() -> None:
    alone, pair, again = (
        run_team(1, _supervised),
        run_team(2, _supervised),
        run_team(2, _supervised),
    )
    assert json.dumps(pair) == json.dumps(again)
    assert pair["weights"][0] == pair["weights"][1]
    assert pair["losses"][:10] == pytest.approx(alone["losses"][:10], rel=1e-3)
    assert pair["losses"][-1] < 0.7 * pair["losses"][0]


def test_an_update_is_the_same_over_any_number_of_processes(tmp_path: Path) -> None:
    base = trained_policy(tiny_suite(), CONFIG)
    start, flat_start = base.state_dict(), _digest(base)
    alone = run_team(1, lambda team: _rl(team, tmp_path / "a", start))
    pair = run_team(2, lambda team: _rl(team, tmp_path / "b", start))
    three = run_team(3, lambda team: _rl(team, tmp_path / "d", start))
    again = run_team(2, lambda team: _rl(team, tmp_path / "c", start))
    assert json.dumps(pair) == json.dumps(again)
    assert pair["history"][0] == pair["history"][1]
    assert pair["weights"][0] == pair["weights"][1]
    first, first_alone = pair["history"][0][0], alone["history"][0][0]
    for name in ("reward", "success", "tokens", "sampled_tokens", "zero_variance_groups"):
        assert first[name] == pytest.approx(first_alone[name], rel=1e-12), name
    for name in ("loss", "gradient_norm", "kl", "entropy"):
        assert first[name] == pytest.approx(first_alone[name], rel=1e-3, abs=1e-6), name
    moved = max(abs(a - b) for a, b in zip(alone["weights"][0], flat_start, strict=True))
    for team in (pair, three):  # uneven shares, two steps an epoch, two epochs, two updates
        gap = max(abs(a - b) for a, b in zip(alone["weights"][0], team["weights"][0], strict=True))
        assert gap < 0.01 * moved
