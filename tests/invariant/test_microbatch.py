"""G2 through the real policy: the split into micro-batches changes neither loss nor gradient."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from methods.agent import make_policy
from methods.grpo.stages import (
    LossSums,
    accumulate_gradient,
    compute_advantage,
    compute_log_prob,
    compute_ref_log_prob,
    generate_sequences,
    reward,
)
from methods.policy import SmallPolicy
from tests.methods.tiny import tiny_config, tiny_suite

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def policy() -> SmallPolicy:
    """Random weights: every parameter has a gradient."""
    return make_policy(tiny_suite(), CONFIG, CONFIG.attention, torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def batch(policy: SmallPolicy) -> TensorDict:
    """Sixteen off-policy trajectories of unequal length, with a zero-variance group."""
    generators = [np.random.default_rng(i) for i in range(16)]
    suite = tiny_suite()
    batch, episodes = generate_sequences(policy, suite, (0, 1, 2, 3), 4, generators)
    allowed = torch.from_numpy(suite.codec.grammar.allowed)
    compute_log_prob(policy, batch, allowed)
    compute_ref_log_prob(policy, batch, allowed)
    noise = torch.Generator().manual_seed(1)
    for key in ("old_log_probs", "ref_log_probs"):
        shift = 0.3 * torch.randn(batch[key].shape, generator=noise)
        batch[key] = torch.where(batch["action_mask"], batch[key] + shift, 0.0)
    reward(batch, episodes)
    batch["rewards"] = torch.randn(16, generator=noise, dtype=torch.float64)
    batch["rewards"][4:8] = 1.0
    assert compute_advantage(batch)["zero_variance_groups"] == 1
    assert len(set(batch["lengths"].tolist())) > 3
    return batch


def gradient(
    policy: SmallPolicy, batch: TensorDict, parts: list[torch.Tensor], micro_batch: int
) -> tuple[LossSums, torch.Tensor]:
    """Accumulated over ``parts`` with one denominator."""
    policy.zero_grad(set_to_none=True)
    allowed = torch.from_numpy(tiny_suite().codec.grammar.allowed)
    config = dataclasses.replace(CONFIG.grpo, micro_batch=micro_batch)
    sums = LossSums()
    denominator = float(batch["action_mask"].sum())
    for rows in parts:
        accumulate_gradient(policy, batch, rows, denominator, allowed, config, sums)
    flat = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return sums, torch.cat(flat)


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5, 8])
def test_micro_batch_size_changes_nothing(
    policy: SmallPolicy, batch: TensorDict, micro_batch: int
) -> None:
    everything = [torch.arange(16)]
    whole, expected = gradient(policy, batch, everything, 16)
    split, found = gradient(policy, batch, everything, micro_batch)
    assert split.loss == pytest.approx(whole.loss, abs=1e-6)
    assert (split.tokens, split.clipped) == (whole.tokens, whole.clipped)
    assert split.clipped > 0
    assert split.kl_sum == pytest.approx(whole.kl_sum, rel=1e-5)
    scale = float(expected.abs().max())
    assert scale > 1e-3
    assert float((found - expected).abs().max()) < 1e-5 * max(scale, 1)


def test_ragged_partitions_add_up(policy: SmallPolicy, batch: TensorDict) -> None:
    """Parts with very different token counts: a mean per part would weight them wrongly."""
    by_length = torch.argsort(batch["lengths"])
    whole, expected = gradient(policy, batch, [torch.arange(16)], 16)
    split, found = gradient(policy, batch, [by_length[:13], by_length[13:]], 4)
    assert split.loss == pytest.approx(whole.loss, abs=1e-6)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_more_padding_changes_nothing(policy: SmallPolicy, batch: TensorDict) -> None:
    """The same rows padded by 37 further positions with a token the policy could have sampled."""
    _, expected = gradient(policy, batch, [torch.arange(16)], 16)
    extra = 37
    wider = TensorDict({}, batch_size=batch.batch_size)
    for key, value in batch.items():
        if value.ndim == 2:
            fill = 7 if key == "tokens" else (-1 if key == "grammar_state" else 0)
            value = torch.nn.functional.pad(value, (0, extra), value=fill)  # noqa: PLW2901
        wider[key] = value
    wider["lengths"] = batch["lengths"].clone()
    # One row is told to be as long as the padded batch, so that nobody cuts the padding away.
    policy.zero_grad(set_to_none=True)
    scores = policy.score(
        wider["tokens"],
        torch.full((16,), wider["tokens"].shape[1]),
        wider["action_mask"],
        wider["grammar_state"],
        torch.from_numpy(tiny_suite().codec.grammar.allowed),
    ).log_probs
    narrow = policy.score(
        batch["tokens"],
        batch["lengths"],
        batch["action_mask"],
        batch["grammar_state"],
        torch.from_numpy(tiny_suite().codec.grammar.allowed),
    ).log_probs
    torch.testing.assert_close(scores[:, :-extra], narrow, atol=1e-5, rtol=0)
    assert bool((scores[:, -extra:] == 0).all())
    _, found = gradient(policy, wider, [torch.arange(16)], 3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
