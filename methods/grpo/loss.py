"""The clipped GRPO objective with a KL penalty to the reference policy.

Shape legend: B trajectories, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LossTerms:
    """Loss of some trajectories, and sums that add up over micro-batches.

    Args:
        loss: Scalar with gradient; losses of micro-batches add up to the loss of the whole.
        clipped: Sampled tokens whose policy gradient the clip removed.
        kl_sum: Sum over sampled tokens of the k3 estimate of KL(policy || reference), in nats.
        tokens: Sampled tokens.
        max_log_ratio: Largest |log pi - log pi_old| of a sampled token, 0 without one.
    """

    loss: torch.Tensor
    clipped: int
    kl_sum: float
    tokens: int
    max_log_ratio: float


def k3_divergence(log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """Per-token KL(policy || reference), estimated by ``r - log r - 1`` with r = pi_ref / pi.

    Unbiased for tokens sampled by the policy and never negative (k3 of J. Schulman, "Approximating
    KL divergence", 2020; equation 4 of arXiv 2402.03300).

    Args:
        log_probs: Log-probabilities under the policy, any shape.
        ref_log_probs: Log-probabilities of the same tokens under the reference.

    Returns:
        The estimate, same shape.
    """
    log_r = ref_log_probs - log_probs
    return torch.expm1(log_r) - log_r


def grpo_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: float,
    beta: float,
    denominator: float,
) -> LossTerms:
    """Negated clipped surrogate plus KL penalty, both over one fixed denominator.

    loss = sum over sampled tokens of
    ``[-min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A) + beta * k3] / denominator``.

    The denominator is an argument because only the caller sees the whole update: it is the total
    number of sampled tokens, so that neither loss nor gradient depends on how the trajectories are
    split into micro-batches. (A mean taken in here would weight a token by its micro-batch.)

    Args:
        log_probs: float [B, T], log pi of the tokens, with gradient.
        old_log_probs: float [B, T], the same under the policy at the start of the update.
        ref_log_probs: float [B, T], the same under the reference policy.
        advantages: float [B], one for every token of its trajectory.
        mask: bool [B, T], True where the policy sampled the token. Observation tokens, prompts and
            padding are False: whatever stands there, even NaN, reaches neither loss nor gradient.
        clip: eps of the clipped ratio, > 0.
        beta: Weight of the KL penalty, >= 0.
        denominator: Sampled tokens of the update, > 0.

    Returns:
        The loss and its diagnostics.

    Raises:
        ValueError: If ``denominator`` is not positive.
    """
    if not denominator > 0:
        raise ValueError(f"denominator must be positive (sampled tokens), got {denominator}")
    # Selecting instead of multiplying by the mask: 0 * NaN is NaN.
    chosen = log_probs[mask]
    token_advantages = advantages.to(chosen.dtype).unsqueeze(1).expand(mask.shape)[mask]
    log_ratio = chosen - old_log_probs[mask]
    ratio = log_ratio.exp()
    surrogate = torch.minimum(
        ratio * token_advantages, ratio.clamp(1 - clip, 1 + clip) * token_advantages
    )
    divergence = k3_divergence(chosen, ref_log_probs[mask])
    loss = (beta * divergence - surrogate).sum() / denominator
    with torch.no_grad():
        # Outside the range the clip bites only where the unclipped term is the larger one.
        removed = ((ratio > 1 + clip) & (token_advantages > 0)) | (
            (ratio < 1 - clip) & (token_advantages < 0)
        )
        return LossTerms(
            loss=loss,
            clipped=int(removed.sum()),
            kl_sum=float(divergence.sum()),
            tokens=chosen.numel(),
            max_log_ratio=float(log_ratio.abs().max()) if chosen.numel() else 0.0,
        )
