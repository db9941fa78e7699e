"""Group-relative advantages (DeepSeekMath, arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

EPSILON = 1e-6


@dataclass(frozen=True)
class Advantages:
    """Advantages of one update.

    Args:
        values: float64 [B]; exactly 0 in a group without a signal and for an invalid reward.
        zero_variance_groups: Groups without a signal: fewer than two finite rewards, or all equal.
            Their policy gradient is zero, yet their tokens count in the loss denominator and still
            pull the policy to the reference through the KL term.
        invalid_rewards: Rows whose reward was NaN or infinite.
    """

    values: torch.Tensor
    zero_variance_groups: int
    invalid_rewards: int


def group_advantages(rewards: torch.Tensor, groups: torch.Tensor) -> Advantages:
    """A_i = (R_i - mean) / (std + 1e-6) over the finite rewards of i's group.

    ``std`` is the sample standard deviation (n - 1), as in verl and TRL. A non-finite reward
    invalidates its own row alone: it gets 0 and stays out of its group's statistics. Everything is
    computed in float64: a group whose rewards differ by 1e-5 is then scaled as the equation says,
    and not by what float32 left of the difference.

    Args:
        rewards: [B], any floating or integer type; the return of each trajectory.
        groups: int [B]; equal numbers mark the trajectories of one group, in any order.

    Returns:
        The advantages [B] in float64 and the counters.

    Raises:
        ValueError: If the two are not vectors of one length.
    """
    if rewards.ndim != 1 or rewards.shape != groups.shape:
        raise ValueError(
            f"rewards and groups must be vectors of one length, got {tuple(rewards.shape)} and "
            f"{tuple(groups.shape)}"
        )
    rewards = rewards.detach().to(torch.float64)
    finite = torch.isfinite(rewards)
    values = torch.zeros_like(rewards)
    zero_variance = 0
    for group in torch.unique(groups).tolist():
        rows = ((groups == group) & finite).nonzero().squeeze(1)
        member_rewards = rewards[rows]
        # Equality is tested on the rewards themselves: the rounded mean of equal numbers need not
        # equal them, and dividing that rounding error by epsilon would make a signal of it.
        if len(rows) < 2 or bool(member_rewards.max() == member_rewards.min()):
            zero_variance += 1
            continue
        centred = member_rewards - member_rewards.mean()
        values[rows] = centred / (member_rewards.std(correction=1) + EPSILON)
    return Advantages(values, zero_variance, int((~finite).sum()))
