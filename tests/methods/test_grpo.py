"""GRPO's two equations against values worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from methods.grpo.advantage import group_advantages
from methods.grpo.batch import length_sorted_slices, split_minibatches
from methods.grpo.loss import grpo_loss, k3_divergence


def advantages_of(rewards: list[float], groups: list[int] | None = None) -> list[float]:
    groups = groups or [0] * len(rewards)
    return group_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)
    ).values.tolist()


# --- advantages -----------------------------------------------------------------------------


def test_advantage_by_hand() -> None:
    # mean 0.5, sample variance (0.25 * 4) / 3, std 0.57735
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantages_of([0, 1, 1, 0]) == pytest.approx([-expected, expected, expected, -expected])


def test_low_variance_group_is_the_same_in_every_path() -> None:
    """G1: [1, 1.00001] gives -+0.6195 alone, among other groups and interleaved with them."""
    expected = 0.000005 / (0.00001 / math.sqrt(2) + 1e-6)
    assert expected == pytest.approx(0.6195, abs=5e-5)
    alone = advantages_of([1, 1.00001])
    behind = advantages_of([0, 1, 0, 1, 1.00001], [0, 0, 0, 1, 1])[3:]
    interleaved = advantages_of([1, 5, 1.00001, -3], [7, 2, 7, 2])[::2]
    for found in (alone, behind, interleaved):
        assert found == pytest.approx([-expected, expected], abs=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7e5, 1e-300])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_constant_group_is_exactly_zero(value: float, size: int) -> None:
    """G1: also where the mean of equal numbers rounds away from them; a group of one too."""
    result = group_advantages(torch.tensor([value] * size), torch.zeros(size, dtype=torch.long))
    assert result.values.tolist() == [0.0] * size
    assert result.zero_variance_groups == 1
    assert result.invalid_rewards == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_reward_invalidates_its_own_row_only(bad: float) -> None:
    result = group_advantages(torch.tensor([0.0, bad, 1.0, 1.0]), torch.zeros(4, dtype=torch.long))
    rest = advantages_of([0.0, 1.0, 1.0])
    assert result.values.tolist() == [rest[0], 0.0, rest[1], rest[2]]
    assert (result.invalid_rewards, result.zero_variance_groups) == (1, 0)


def test_group_with_one_finite_reward_has_no_signal() -> None:
    result = group_advantages(torch.tensor([math.nan, 3.0]), torch.tensor([0, 0]))
    assert result.values.tolist() == [0.0, 0.0]
    assert (result.invalid_rewards, result.zero_variance_groups) == (1, 1)


def test_groups_do_not_mix() -> None:
    result = group_advantages(
        torch.tensor([0.0, 10.0, 1.0, 20.0]), torch.tensor([0, 1, 0, 1])
    ).values
    assert result[0] + result[2] == 0
    assert result[1] + result[3] == 0
    assert result[1] == pytest.approx(-math.sqrt(0.5), abs=1e-6)


def test_advantages_refuse_ragged_input() -> None:
    with pytest.raises(ValueError, match="vectors of one length"):
        group_advantages(torch.zeros(3), torch.zeros(2, dtype=torch.long))


# --- loss -----------------------------------------------------------------------------------


def test_loss_by_hand() -> None:
    """Four tokens, one for each branch of the clip, with a KL term."""
    ratios = torch.tensor([[1.5, 0.5], [1.5, 0.5]], dtype=torch.float64)
    log_probs = ratios.log().requires_grad_()
    zeros = torch.zeros(2, 2, dtype=torch.float64)
    ref = log_probs.detach() + math.log(2)  # r = 2 everywhere: k3 = 2 - log 2 - 1
    terms = grpo_loss(
        log_probs,
        zeros,
        ref,
        torch.tensor([1.0, -1.0], dtype=torch.float64),
        torch.ones(2, 2, dtype=torch.bool),
        clip=0.2,
        beta=0.1,
        denominator=4,
    )
    # min(1.5, 1.2) + min(0.5, 0.8) + min(-1.5, -1.2) + min(-0.5, -0.8)
    surrogate = 1.2 + 0.5 - 1.5 - 0.8
    k3 = 1 - math.log(2)
    assert float(terms.loss.detach()) == pytest.approx(-surrogate / 4 + 0.1 * k3)
    assert terms.clipped == 2
    assert terms.kl_sum == pytest.approx(4 * k3)
    assert terms.max_log_ratio == pytest.approx(math.log(2))
    terms.loss.backward()
    assert log_probs.grad is not None
    # d loss / d log pi = (-ratio * A if unclipped) / 4 + beta * (1 - r) / 4
    kl_part = 0.1 * (1 - 2) / 4
    expected = [[kl_part, -0.5 / 4 + kl_part], [1.5 / 4 + kl_part, kl_part]]
    torch.testing.assert_close(log_probs.grad, torch.tensor(expected, dtype=torch.float64))


def test_clip_fraction_counts_only_removed_gradients() -> None:
    """Outside the range on the harmless side nothing is clipped, and nothing is counted."""
    ratio = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.1]], dtype=torch.float64)
    for advantage, expected in ((1.0, 2), (-1.0, 2), (0.0, 0)):
        log_probs = ratio.log().requires_grad_()
        terms = grpo_loss(
            log_probs,
            torch.zeros_like(ratio),
            log_probs.detach(),
            torch.tensor([advantage], dtype=torch.float64),
            torch.ones(1, 5, dtype=torch.bool),
            clip=0.2,
            beta=0.0,
            denominator=5,
        )
        terms.loss.backward()
        assert log_probs.grad is not None
        assert terms.clipped == expected
        if advantage:
            assert int((log_probs.grad == 0).sum()) == expected


def test_token_mean_does_not_depend_on_the_split() -> None:
    """G2: token losses 2 x 1.0 and 6 x 3.0 have mean 2.5 in every partition, gradients too."""
    # On policy the loss of a token is minus its advantage.
    log_probs = torch.zeros(2, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 2 + [False] * 4, [True] * 6])
    advantage = torch.tensor([-1.0, -3.0], dtype=torch.float64)

    def run(splits: list[list[int]]) -> tuple[float, torch.Tensor]:
        values = log_probs.clone().requires_grad_()
        total = 0.0
        for rows in splits:
            loss = grpo_loss(
                values[rows],
                log_probs[rows],
                log_probs[rows],
                advantage[rows],
                mask[rows],
                clip=0.2,
                beta=0.02,
                denominator=int(mask.sum()),
            ).loss
            loss.backward()
            total += float(loss.detach())
        assert values.grad is not None
        return total, values.grad

    whole, gradient = run([[0, 1]])
    split, split_gradient = run([[0], [1]])
    assert whole == pytest.approx(2.5)
    assert split == pytest.approx(2.5)
    assert torch.equal(gradient, split_gradient)
    assert gradient[0].tolist() == pytest.approx([1 / 8] * 2 + [0] * 4)
    assert gradient[1].tolist() == pytest.approx([3 / 8] * 6)


def test_every_partition_of_eight_rows_gives_one_gradient() -> None:
    """G2 with random ragged rows, KL and clipping, over all contiguous partitions."""
    generator = torch.Generator().manual_seed(3)
    shape = (8, 5)
    old = -torch.rand(shape, generator=generator, dtype=torch.float64)
    new = old + 0.6 * torch.randn(shape, generator=generator, dtype=torch.float64)
    ref = old + 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64)
    advantage = torch.randn(8, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.6
    reference: torch.Tensor | None = None
    for cuts in itertools.product([False, True], repeat=7):
        starts = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 8]
        values = new.clone().requires_grad_()
        for start, stop in itertools.pairwise(starts):
            part = slice(start, stop)
            grpo_loss(
                values[part],
                old[part],
                ref[part],
                advantage[part],
                mask[part],
                clip=0.2,
                beta=0.02,
                denominator=int(mask.sum()),
            ).loss.backward()
        assert values.grad is not None
        reference = values.grad if reference is None else reference
        assert torch.allclose(values.grad, reference, atol=1e-15, rtol=0)


def test_only_sampled_tokens_carry_gradient() -> None:
    """G3: observation, an assistant turn of the prompt, and padding equal to end-of-turn do not.

    Row: [obs, prompt's assistant turn, its end-of-turn, sampled, sampled end-of-turn, padding].
    """
    log_probs = torch.full((1, 6), -1.0, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, False, False, True, True, False]])
    terms = grpo_loss(
        log_probs,
        torch.full((1, 6), -1.0, dtype=torch.float64),
        torch.full((1, 6), -1.5, dtype=torch.float64),
        torch.tensor([2.0], dtype=torch.float64),
        mask,
        clip=0.2,
        beta=0.02,
        denominator=2,
    )
    terms.loss.backward()
    assert log_probs.grad is not None
    assert terms.tokens == 2
    assert (log_probs.grad != 0).tolist() == mask.tolist()


def test_garbage_outside_the_mask_changes_nothing() -> None:
    mask = torch.tensor([[True, False]])
    results = []
    for garbage in (0.0, math.nan, -math.inf):
        log_probs = torch.tensor([[-1.0, garbage]], requires_grad=True)
        other = torch.tensor([[-1.1, garbage]])
        terms = grpo_loss(
            log_probs, other, other, torch.ones(1), mask, clip=0.2, beta=0.1, denominator=1
        )
        terms.loss.backward()
        assert log_probs.grad is not None
        results.append((float(terms.loss.detach()), terms.max_log_ratio, log_probs.grad.tolist()))
    assert results[0] == results[1] == results[2]
    assert results[0][2][0][1] == 0


def test_zero_variance_group_still_pulls_by_kl() -> None:
    """G5: no policy gradient, yet a gradient to the reference; without KL there is none."""
    result = group_advantages(torch.ones(2), torch.zeros(2, dtype=torch.long))
    assert result.zero_variance_groups == 1
    for beta, pulls in ((0.02, True), (0.0, False)):
        log_probs = torch.full((2, 3), -1.0, requires_grad=True)
        grpo_loss(
            log_probs,
            log_probs.detach(),
            torch.full((2, 3), -2.0),
            result.values,
            torch.ones(2, 3, dtype=torch.bool),
            clip=0.2,
            beta=beta,
            denominator=6,
        ).loss.backward()
        assert log_probs.grad is not None
        assert bool((log_probs.grad > 0).all()) is pulls  # the step lowers log pi towards -2


def test_k3_is_never_negative_and_zero_on_equality() -> None:
    log_probs = torch.linspace(-5, 0, 41, dtype=torch.float64)
    ref = log_probs.flip(0)
    assert bool((k3_divergence(log_probs, ref) >= 0).all())
    assert k3_divergence(log_probs, log_probs).tolist() == [0.0] * 41
    # log r = 1e-9: k3 is about r^2 / 2 and must not drown in exp(r) - 1 - r
    tiny = k3_divergence(torch.zeros(1, dtype=torch.float64), torch.tensor([1e-4]).double())
    assert float(tiny) == pytest.approx(5e-9, rel=1e-3)


def test_loss_refuses_an_empty_denominator() -> None:
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="denominator must be positive"):
        grpo_loss(one, one, one, one[0], one.bool(), clip=0.2, beta=0.0, denominator=0)


# --- cutting an update ----------------------------------------------------------------------


def test_minibatches_keep_groups_whole_and_lose_no_row() -> None:
    groups = torch.arange(4).repeat_interleave(8)
    parts = split_minibatches(groups, 2, np.random.default_rng(0))
    assert sorted(torch.cat(parts).tolist()) == list(range(32))
    assert [len(part) for part in parts] == [16, 16]
    assert not set(groups[parts[0]].tolist()) & set(groups[parts[1]].tolist())
    orders = {
        tuple(torch.cat(split_minibatches(groups, 2, np.random.default_rng(s))).tolist())
        for s in range(8)
    }
    assert len(orders) > 1


def test_micro_batches_are_sorted_by_length() -> None:
    lengths = torch.tensor([5, 9, 1, 7, 3])
    parts = [lengths[rows].tolist() for rows in length_sorted_slices(lengths, 2)]
    assert parts == [[1, 3], [5, 7], [9]]
