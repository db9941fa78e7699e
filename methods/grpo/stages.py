"""The stages of one policy update, VERL's, one function each.

``generate_sequences`` -> ``compute_log_prob`` -> ``compute_ref_log_prob`` -> ``reward`` ->
``compute_advantage`` -> ``update_actor`` (HybridFlow, arXiv 2409.19256, section 4). The batch
is a ``TensorDict``; ``methods.grpo.batch`` lists its keys and shapes.

Data parallel: each process of a team holds some members of every group and runs the stages on them.
Rewards are exchanged for the advantages, token counts for the denominator, gradients before each
optimiser step; nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from methods.grpo.advantage import group_advantages
from methods.grpo.batch import (
    ScoringPolicy,
    episodes_to_batch,
    length_sorted_slices,
    score_all,
    score_rows,
    split_minibatches,
)
from methods.grpo.loss import grpo_loss
from methods.rollout import generate
from methods.team import SOLO, Team

if TYPE_CHECKING:
    import gymnasium

    from methods.base import AgentSuite, Episode
    from methods.config import GRPOConfig
    from methods.policy import SmallPolicy


def generate_sequences(
    policy: SmallPolicy,
    suite: AgentSuite,
    tasks: Sequence[int],
    members: int,
    generators: Sequence[np.random.Generator],
    envs: Sequence[gymnasium.Env[Any, Any]] | None = None,
) -> tuple[TensorDict, list[Episode]]:
    """Stage 1: fresh trajectories on each task, sampled by the current policy.

    Args:
        policy: The policy to sample from.
        suite: Where the train tasks come from.
        tasks: Train task of each group.
        members: Trajectories of each group that this process samples (G when it is alone).
        generators: One a trajectory, group by group.
        envs: Environments to reuse, one a trajectory.

    Returns:
        The batch with its first six keys, and the episodes in the same order.
    """
    groups = [group for group in range(len(tasks)) for _ in range(members)]
    episodes = generate(
        policy, suite, "train", [tasks[group] for group in groups], generators, envs=envs
    )
    return episodes_to_batch(episodes, groups, suite.codec.pad_id), episodes


def compute_log_prob(policy: ScoringPolicy, batch: TensorDict, allowed: torch.Tensor) -> float:
    """Stage 2: ``old_log_probs`` and ``entropy`` of the sampled tokens through the training path.

    These, and not what the rollout recorded, enter the ratio: numerator and denominator then come
    from one code path, and the ratio is 1 on policy whatever the cache rounds differently.

    Returns:
        Largest |old_log_probs - rollout_log_probs| of a sampled token, in nats.
    """
    batch["old_log_probs"], batch["entropy"] = score_all(policy, batch, allowed)
    gap = (batch["old_log_probs"] - batch["rollout_log_probs"])[batch["action_mask"]].abs()
    return float(gap.max()) if gap.numel() else 0.0


def compute_ref_log_prob(
    reference: ScoringPolicy, batch: TensorDict, allowed: torch.Tensor
) -> None:
    """Stage 3: ``ref_log_probs``, the sampled tokens under the frozen base policy."""
    batch["ref_log_probs"], _ = score_all(reference, batch, allowed)


def reward(batch: TensorDict, episodes: Sequence[Episode]) -> None:
    """Stage 4: ``rewards`` [B], the return of each episode, non-finite ones included."""
    batch["rewards"] = torch.tensor([e.reward for e in episodes], dtype=torch.float64)


def compute_advantage(batch: TensorDict, team: Team = SOLO) -> dict[str, float]:
    """Stage 5: ``advantages`` [B] and the counters ``zero_variance_groups``, ``invalid_rewards``.

    Groups without variance stay in the batch. Their policy gradient is zero, but they count in the
    denominator and pull the policy to the reference through the KL term; dropping them would be a
    different loss.

    Args:
        batch: This process's trajectories.
        team: Its groups' other members; the counters are of all.
    """
    shares = team.gather([batch["rewards"].tolist(), batch["groups"].tolist()])
    rewards = torch.tensor([r for share in shares for r in share[0]], dtype=torch.float64)
    groups = torch.tensor([g for share in shares for g in share[1]], dtype=torch.int64)
    result = group_advantages(rewards, groups)
    start = sum(len(share[0]) for share in shares[: team.rank])
    batch["advantages"] = result.values[start : start + len(batch["rewards"])]
    return {
        "zero_variance_groups": float(result.zero_variance_groups),
        "invalid_rewards": float(result.invalid_rewards),
    }


@dataclass
class LossSums:
    """Sums over this process's micro-batches of an update; the gradient norm of each step."""

    loss: float = 0.0
    clipped: int = 0
    kl_sum: float = 0.0
    tokens: int = 0
    max_log_ratio: float = 0.0
    gradient_norms: list[float] = field(default_factory=list)


def update_actor(
    policy: SmallPolicy,
    optimizer: torch.optim.Optimizer,
    batch: TensorDict,
    allowed: torch.Tensor,
    config: GRPOConfig,
    generators: Callable[[int], np.random.Generator],
    team: Team = SOLO,
) -> dict[str, float]:
    """Stage 6: ``epochs`` passes of ``minibatches`` optimiser steps over the batch.

    The denominator of a step's loss is N / M: N sampled tokens of the whole update, M minibatches.
    With one minibatch this is the paper's equation to the letter. With M, the mean of the steps'
    losses is that same loss, each token weighs the same in whichever step it falls, and a step on
    one of M equal shares has the scale of a step on everything, so that the learning rate and the
    gradient clipping keep their meaning. (A step's own token count as denominator would weigh
    tokens by the company they keep; N would make every step M times smaller.) Micro-batches only
    split the forward passes of a step.

    Args:
        policy: The policy to change.
        optimizer: Its optimiser.
        batch: With all keys.
        allowed: bool [G, V], the grammar.
        config: Clip, beta, batch sizes.
        generators: Gives the generator that orders the groups of an epoch.
        team: The processes that hold the rest of the update's trajectories.

    Returns:
        loss (mean over steps), clip_fraction, kl, gradient_norm (mean before clipping),
        max_log_ratio.

    Raises:
        FloatingPointError: If a gradient is not finite; the policy keeps its last good weights.
    """
    total = max(sum(team.gather(int(batch["action_mask"].sum()))), 1)
    done = LossSums()
    for epoch in range(config.epochs):
        for rows in split_minibatches(batch["groups"], config.minibatches, generators(epoch)):
            optimizer.zero_grad(set_to_none=True)
            denominator = total / config.minibatches
            accumulate_gradient(policy, batch, rows, denominator, allowed, config, done)
            done.gradient_norms.append(_optimizer_step(policy, optimizer, config, team))
    shares = team.gather([done.loss, done.clipped, done.kl_sum, done.tokens, done.max_log_ratio])
    loss, clipped, kl_sum, tokens, ratios = zip(*shares, strict=True)
    steps, counted = max(len(done.gradient_norms), 1), max(sum(tokens), 1)
    return {
        "loss": sum(loss) / steps,
        "clip_fraction": sum(clipped) / counted,
        "kl": sum(kl_sum) / counted,
        "gradient_norm": sum(done.gradient_norms) / steps,
        "max_log_ratio": max(ratios),
    }


def accumulate_gradient(
    policy: SmallPolicy,
    batch: TensorDict,
    rows: torch.Tensor,
    denominator: float,
    allowed: torch.Tensor,
    config: GRPOConfig,
    done: LossSums,
) -> None:
    """Add the gradient of the loss over ``rows`` to the parameters, micro-batch by micro-batch."""
    for micro in length_sorted_slices(batch["lengths"][rows], config.micro_batch):
        chosen = rows[micro]
        scores, longest = score_rows(policy, batch, chosen, allowed)
        terms = grpo_loss(
            scores.log_probs,
            batch["old_log_probs"][chosen, :longest],
            batch["ref_log_probs"][chosen, :longest],
            batch["advantages"][chosen],
            batch["action_mask"][chosen, :longest],
            clip=config.clip,
            beta=config.beta,
            denominator=denominator,
        )
        terms.loss.backward()  # type: ignore[no-untyped-call]
        done.loss += float(terms.loss.detach())
        done.clipped += terms.clipped
        done.kl_sum += terms.kl_sum
        done.tokens += terms.tokens
        done.max_log_ratio = max(done.max_log_ratio, terms.max_log_ratio)


def _optimizer_step(
    policy: SmallPolicy, optimizer: torch.optim.Optimizer, config: GRPOConfig, team: Team
) -> float:
    """Add up the team's gradients and step; the gradient norm before clipping."""
    team.add_gradients(list(policy.parameters()))
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm))
    if not math.isfinite(norm):
        raise FloatingPointError(
            f"the gradient norm of a policy step is {norm}; the weights were not changed. Lower "
            f"the learning rate (now {config.learning_rate}) or check the rewards"
        )
    optimizer.step()
    return norm
