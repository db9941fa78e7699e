"""The six stages on a real policy: shapes, on-policy ratio, masks, determinism, resume, learning."""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from harness.seeding import HashSeeds
from methods.agent import make_policy
from methods.base import Episode, Interrupted
from methods.checkpoint import CheckpointError
from methods.grpo.stages import (
    compute_advantage,
    compute_log_prob,
    compute_ref_log_prob,
    generate_sequences,
    reward,
    update_actor,
)
from methods.policy import SmallPolicy
from methods.trainer import run_update, train
from tests.methods.tiny import Recorder, tiny_config, tiny_context, tiny_suite, trained_policy

CONFIG = tiny_config()
GRPO = CONFIG.grpo
DETERMINISTIC = ("loss", "reward", "success", "clip_fraction", "kl", "entropy", "gradient_norm")


@cache
def _base() -> dict[str, torch.Tensor]:
    return trained_policy(tiny_suite(), CONFIG).state_dict()


def base_policy() -> SmallPolicy:
    policy = make_policy(tiny_suite(), CONFIG, CONFIG.attention)
    policy.load_state_dict(_base())
    return policy


def allowed_tokens() -> torch.Tensor:
    return torch.from_numpy(tiny_suite().codec.grammar.allowed)


def ready_batch(policy: SmallPolicy, tasks: tuple[int, ...] = (0, 1, 2)) -> TensorDict:
    """A batch after stage 5, four trajectories a task."""
    generators = [np.random.default_rng(i) for i in range(4 * len(tasks))]
    batch, episodes = generate_sequences(policy, tiny_suite(), tasks, 4, generators)
    compute_log_prob(policy, batch, allowed_tokens())
    compute_ref_log_prob(policy, batch, allowed_tokens())
    reward(batch, episodes)
    compute_advantage(batch)
    return batch


def adamw(policy: SmallPolicy) -> torch.optim.Optimizer:
    return torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0, fused=True)


def test_batch_keys_and_shapes() -> None:
    batch = ready_batch(base_policy())
    size, length = 12, int(batch["lengths"].max())
    assert batch.batch_size == torch.Size([size])
    expected = {
        "tokens": (torch.int64, (size, length)),
        "lengths": (torch.int64, (size,)),
        "action_mask": (torch.bool, (size, length)),
        "grammar_state": (torch.int64, (size, length)),
        "rollout_log_probs": (torch.float32, (size, length)),
        "groups": (torch.int64, (size,)),
        "old_log_probs": (torch.float32, (size, length)),
        "entropy": (torch.float32, (size, length)),
        "ref_log_probs": (torch.float32, (size, length)),
        "rewards": (torch.float64, (size,)),
        "advantages": (torch.float64, (size,)),
    }
    assert {k: (v.dtype, tuple(v.shape)) for k, v in batch.items()} == expected
    assert batch["groups"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    outside = ~batch["action_mask"]
    for key in ("rollout_log_probs", "old_log_probs", "ref_log_probs", "entropy"):
        assert bool((batch[key][outside] == 0).all()), key
    padding = torch.arange(length) >= batch["lengths"][:, None]
    assert bool((batch["tokens"][padding] == tiny_suite().codec.pad_id).all())
    assert not bool(batch["action_mask"][padding].any())


def test_ratio_is_one_on_policy_whatever_the_batch_sizes() -> None:
    """G4: old at batch 8, new at batch 1, no update between."""
    policy = base_policy()
    batch = ready_batch(policy)
    before = copy.deepcopy(policy.state_dict())
    config = dataclasses.replace(GRPO, micro_batch=1, minibatches=1)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    report = update_actor(
        policy, optimizer, batch, allowed_tokens(), config, lambda epoch: np.random.default_rng(0)
    )
    assert all(torch.equal(before[k], v) for k, v in policy.state_dict().items())
    assert report["clip_fraction"] == 0
    assert report["max_log_ratio"] < 1e-4
    assert report["kl"] == pytest.approx(0, abs=1e-6)


def test_rollout_and_training_path_agree() -> None:
    """G4: the largest |log ratio| between cache path and training path is reported, under 1e-4."""
    policy = base_policy()
    batch = ready_batch(policy)
    gap = compute_log_prob(policy, batch, allowed_tokens())
    assert 0 < gap < 1e-4
    batch["rollout_log_probs"][0, batch["action_mask"][0].nonzero()[0]] -= 0.5
    assert compute_log_prob(policy, batch, allowed_tokens()) == pytest.approx(0.5, abs=1e-3)


def test_padding_and_neighbours_do_not_change_a_row() -> None:
    policy = base_policy()
    batch = ready_batch(policy)
    allowed = allowed_tokens()
    for row in range(len(batch)):
        length = int(batch["lengths"][row])
        alone = policy.score(
            batch["tokens"][row : row + 1, :length],
            batch["lengths"][row : row + 1],
            batch["action_mask"][row : row + 1, :length],
            batch["grammar_state"][row : row + 1, :length],
            allowed,
        ).log_probs[0]
        torch.testing.assert_close(alone, batch["old_log_probs"][row, :length], atol=1e-5, rtol=0)


def test_one_minibatch_is_one_step_of_the_papers_equation() -> None:
    """The first step on policy has loss -sum(A * tokens) / tokens of the update."""
    policy = base_policy()
    batch = ready_batch(policy)
    config = dataclasses.replace(GRPO, minibatches=1)
    report = update_actor(
        policy, adamw(policy), batch, allowed_tokens(), config, lambda e: np.random.default_rng(0)
    )
    tokens = batch["action_mask"].sum(1)
    expected = -(batch["advantages"] * tokens).sum() / tokens.sum()
    assert report["loss"] == pytest.approx(float(expected), abs=1e-5)


def test_minibatch_losses_average_to_the_loss_of_the_whole() -> None:
    policy = base_policy()
    batch = ready_batch(policy, tasks=(0, 1, 2, 3))
    frozen = torch.optim.SGD(policy.parameters(), lr=0.0)
    losses = [
        update_actor(
            policy,
            frozen,
            batch,
            allowed_tokens(),
            dataclasses.replace(GRPO, minibatches=count),
            lambda epoch: np.random.default_rng(0),
        )["loss"]
        for count in (1, 2, 4)
    ]
    assert losses[1:] == pytest.approx([losses[0]] * 2, abs=1e-6)


def test_second_minibatch_can_be_clipped() -> None:
    """With one step an update the clip would be dead code; with large steps it bites."""
    policy = base_policy()
    batch = ready_batch(policy, tasks=(0, 1, 2, 3))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.02, weight_decay=0.0)
    config = dataclasses.replace(GRPO, minibatches=4)
    report = update_actor(
        policy, optimizer, batch, allowed_tokens(), config, lambda e: np.random.default_rng(0)
    )
    assert report["clip_fraction"] > 0
    assert report["max_log_ratio"] > 0.2


def test_non_finite_gradient_stops_and_keeps_the_weights() -> None:
    policy = base_policy()
    batch = ready_batch(policy)
    batch["ref_log_probs"] = torch.where(batch["action_mask"], math.inf, 0.0)
    before = copy.deepcopy(policy.state_dict())
    with pytest.raises(FloatingPointError, match="weights were not changed"):
        update_actor(
            policy, adamw(policy), batch, allowed_tokens(), GRPO, lambda e: np.random.default_rng(0)
        )
    assert all(torch.equal(before[k], v) for k, v in policy.state_dict().items())


def test_zero_variance_update_moves_towards_the_reference_only() -> None:
    """G5 through the policy: constant rewards, KL gradient alone; without KL no gradient at all."""
    reference = base_policy()
    policy = base_policy()
    with torch.no_grad():
        policy.head.mul_(0.8)
    batch = ready_batch(policy)
    compute_ref_log_prob(reference, batch, allowed_tokens())
    batch["rewards"] = torch.ones(len(batch), dtype=torch.float64)
    assert compute_advantage(batch)["zero_variance_groups"] == 3
    for beta, expected in ((0.0, 0.0), (0.5, None)):
        config = dataclasses.replace(GRPO, beta=beta, minibatches=1)
        report = update_actor(
            policy,
            torch.optim.SGD(policy.parameters(), lr=1e-2),
            batch,
            allowed_tokens(),
            config,
            lambda epoch: np.random.default_rng(0),
        )
        if expected is None:
            assert report["gradient_norm"] > 1e-3
        else:
            assert report["gradient_norm"] == expected
    before = report["kl"]
    compute_log_prob(policy, batch, allowed_tokens())
    gap = (batch["ref_log_probs"] - batch["old_log_probs"])[batch["action_mask"]]
    assert float((gap.expm1() - gap).mean()) < before


class NaNReward(gymnasium.Wrapper):
    """Returns NaN from every episode of a task whose index is in ``bad``."""

    bad: frozenset[int] = frozenset({1})

    def reset(self, *, seed=None, options=None):
        self.task = options["task_index"]
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        observation, value, terminated, truncated, info = self.env.step(action)
        return (
            observation,
            math.nan if self.task in self.bad else value,
            terminated,
            truncated,
            info,
        )


def test_invalid_rewards_are_counted_and_harmless() -> None:
    suite = tiny_suite()
    suite._sizes["train"] = 4
    envs: list[gymnasium.Env] = [NaNReward(suite.make_env("train")) for _ in range(32)]
    policy, reference = base_policy(), base_policy()
    report = run_update(policy, reference, adamw(policy), suite, GRPO, HashSeeds(1), 0, envs)
    assert report["invalid_rewards"] == 8
    assert all(math.isfinite(value) for value in report.values())
    assert all(bool(torch.isfinite(p).all()) for p in policy.parameters())


def test_update_without_any_finite_reward_says_so() -> None:
    suite = tiny_suite()
    envs: list[gymnasium.Env] = [NaNReward(suite.make_env("train")) for _ in range(32)]
    for env in envs:
        env.bad = frozenset(range(1000))  # type: ignore[attr-defined]
    policy = base_policy()
    with pytest.raises(FloatingPointError, match="none of the 32 rewards of update 0 is finite"):
        run_update(policy, base_policy(), adamw(policy), suite, GRPO, HashSeeds(1), 0, envs)


def run(folder: Path, updates: int, recorder: Recorder | None = None, spec: str = "spec"):
    policy = base_policy()
    context = tiny_context(folder, updates=updates, recorder=recorder)
    return policy, train(policy, base_policy(), tiny_suite(), GRPO, context, spec)


def stable(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if not k.startswith("seconds_")} for row in history]


def test_report_of_an_update_has_every_number(tmp_path: Path) -> None:
    recorder = Recorder()
    _, result = run(tmp_path, 2, recorder)
    for event, row in zip(recorder.of("progress", "rl"), result.history, strict=True):
        assert set(row) >= {
            *DETERMINISTIC,
            "zero_variance_groups",
            "invalid_rewards",
            "max_log_ratio_gap",
            "tokens",
            "seconds_rollout",
            "seconds_update",
        }
        assert row.items() <= event.items()
        assert row["max_log_ratio_gap"] < 1e-4
    assert result.updates == 2
    assert result.counters["tokens"] == sum(row["tokens"] for row in result.history)


def test_killed_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    """Six updates at once; three, a kill in the fourth (the checkpoint is of two), the rest."""
    whole, full = run(tmp_path / "whole", 6)

    class Killed(BaseException):
        pass

    recorder = Recorder()
    original = recorder.report

    def kill(event) -> None:
        original(event)
        if event.get("done") == 3:
            raise Killed

    recorder.report = kill  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run(tmp_path / "cut", 6, recorder)
    recorder = Recorder()
    resumed, rest = run(tmp_path / "cut", 6, recorder)
    assert recorder.of("resumed")[0]["done"] == 2
    assert stable(rest.history) == stable(full.history)
    assert rest.counters == full.counters
    for (name, expected), found in zip(
        whole.state_dict().items(), resumed.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, found), name


def test_stop_saves_at_once_and_resumes(tmp_path: Path) -> None:
    recorder = Recorder(stop=lambda events: len(events) == 3)
    with pytest.raises(Interrupted, match="after 3 of 5"):
        run(tmp_path, 5, recorder)
    recorder = Recorder()
    resumed, _ = run(tmp_path, 5, recorder)
    assert recorder.of("resumed")[0]["done"] == 3
    whole, _ = run(tmp_path / "whole", 5)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True)
    )


def test_checkpoint_of_another_spec_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 2)
    with pytest.raises(CheckpointError, match="written for another run"):
        run(tmp_path, 4, spec="other")


def test_damaged_checkpoint_falls_back_and_reaches_the_same_bits(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", 4)
    run(tmp_path / "cut", 4)
    newest = tmp_path / "cut" / "cell" / "checkpoint" / "state-000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    recorder = Recorder()
    resumed, _ = run(tmp_path / "cut", 4, recorder)
    assert "Continuing from update 2" in recorder.of("warning")[0]["message"]
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True)
    )


def test_other_seed_gives_other_updates(tmp_path: Path) -> None:
    rows = []
    for seed in (1, 1, 2):
        policy = base_policy()
        rows.append(
            run_update(policy, base_policy(), adamw(policy), tiny_suite(), GRPO, HashSeeds(seed), 0)
        )
    assert stable(rows[:1]) == stable(rows[1:2])
    assert rows[0]["loss"] != rows[2]["loss"]


def test_tasks_without_replacement_unless_there_are_too_few() -> None:
    suite = tiny_suite()
    suite._sizes["train"] = 2
    policy = base_policy()
    report = run_update(policy, base_policy(), adamw(policy), suite, GRPO, HashSeeds(1), 0)
    assert report["tokens"] > 0


def test_episode_order_is_kept() -> None:
    policy = base_policy()
    generators = [np.random.default_rng(i) for i in range(8)]
    batch, episodes = generate_sequences(policy, tiny_suite(), (5, 9), 4, generators)
    assert [episode.task_index for episode in episodes] == [5] * 4 + [9] * 4
    for row, episode in enumerate(episodes):
        length = len(episode.tokens)
        assert batch["tokens"][row, :length].tolist() == episode.tokens
        assert batch["action_mask"][row, :length].tolist() == episode.action_mask
    assert isinstance(episodes[0], Episode)


def test_rl_raises_the_reward(tmp_path: Path) -> None:
    """Twenty updates: clearly better than the base on fresh samples, by more than luck explains."""
    policy, reference = (trained_policy(tiny_suite(), CONFIG, steps=50) for _ in range(2))
    context = tiny_context(tmp_path, updates=20)
    history = train(policy, reference, tiny_suite(), GRPO, context, "spec").history
    first = sum(row["reward"] for row in history[:3]) / 3
    last = sum(row["reward"] for row in history[-3:]) / 3
    assert first < 0.85
    assert last > first + 0.12
