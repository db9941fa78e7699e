"""GRPO training: the loop that runs an update's stages, reports it, and saves what a resume needs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from methods.base import Interrupted
from methods.checkpoint import Checkpoint, CheckpointStore, adamw_tensors, restore_adamw
from methods.grpo.stages import (
    compute_advantage,
    compute_log_prob,
    compute_ref_log_prob,
    generate_sequences,
    reward,
    update_actor,
)
from methods.team import SOLO, Team

if TYPE_CHECKING:
    import gymnasium

    from methods.base import AgentSuite, Episode, RunContext, SeedSource
    from methods.config import GRPOConfig
    from methods.policy import SmallPolicy


@dataclass(frozen=True)
class TrainResult:
    """What training left: numbers of each update, whole-run counters, updates made."""

    history: list[dict[str, float]]
    counters: dict[str, float]
    updates: int


def run_update(
    policy: SmallPolicy,
    reference: SmallPolicy,
    optimizer: torch.optim.Optimizer,
    suite: AgentSuite,
    config: GRPOConfig,
    seeds: SeedSource,
    update: int,
    envs: Sequence[gymnasium.Env[Any, Any]] | None = None,
    team: Team = SOLO,
) -> dict[str, float]:
    """One pass through the six stages; its randomness depends on (seed, update) alone.

    Args:
        policy: Changed in place.
        reference: The frozen base.
        optimizer: The policy's optimiser.
        suite: Tasks.
        config: Sizes and weights.
        seeds: Generators of the cell.
        update: Number of this update, from 0.
        envs: Environments to reuse, one a trajectory of this process.
        team: The processes that share the update; all return the same numbers.

    Returns:
        The update's numbers; keys that start with ``seconds_`` are wall time and differ from run
        to run, all others are functions of the spec.

    Raises:
        FloatingPointError: If no reward of the update is finite, or a gradient is not.
    """
    started = time.perf_counter()
    allowed = torch.from_numpy(suite.codec.grammar.allowed)
    available = suite.num_tasks("train")
    tasks = seeds.numpy("train-tasks", update).choice(
        available, size=config.groups, replace=available < config.groups
    )
    members = team.share_of(range(config.group_size))
    generators = [
        seeds.numpy("rollout", update, group, member)
        for group in range(config.groups)
        for member in members
    ]
    batch, episodes = generate_sequences(
        policy, suite, [int(task) for task in tasks], len(members), generators, envs
    )
    rolled_out = time.perf_counter()
    gap = max(team.gather(compute_log_prob(policy, batch, allowed)))
    compute_ref_log_prob(reference, batch, allowed)
    reward(batch, episodes)
    counts = compute_advantage(batch, team)
    report = _describe(batch, episodes, update, team) | counts
    report |= update_actor(
        policy,
        optimizer,
        batch,
        allowed,
        config,
        lambda epoch: seeds.numpy("minibatches", update, epoch),
        team,
    )
    report["max_log_ratio_gap"] = gap
    report["seconds_rollout"] = rolled_out - started
    report["seconds_update"] = time.perf_counter() - rolled_out
    return report


def _describe(
    batch: TensorDict, episodes: Sequence[Episode], update: int, team: Team
) -> dict[str, float]:
    """Means over the update's trajectories; those with a non-finite reward are left out."""
    success = [e.metrics["joint_success"] for e in episodes if "joint_success" in e.metrics]
    entropy = float(batch["entropy"].double().sum())
    lengths, sampled = int(batch["lengths"].sum()), int(batch["action_mask"].sum())
    shares = team.gather([batch["rewards"].tolist(), success, entropy, lengths, sampled])
    returns = [r for share in shares for r in share[0]]
    rewards = [r for r in returns if math.isfinite(r)]
    successes = [s for share in shares for s in share[1]]
    if not rewards:
        raise FloatingPointError(
            f"none of the {len(returns)} rewards of update {update} is finite (the first is "
            f"{returns[0]}); check the environment's reward"
        )
    mean_reward = sum(rewards) / len(rewards)
    tokens = sum(share[4] for share in shares)
    return {
        "update": float(update + 1),
        "reward": mean_reward,
        "success": sum(successes) / len(successes) if successes else mean_reward,
        "entropy": sum(share[2] for share in shares) / max(tokens, 1),
        "tokens": float(sum(share[3] for share in shares)),
        "sampled_tokens": float(tokens),
    }


def train(
    policy: SmallPolicy,
    reference: SmallPolicy,
    suite: AgentSuite,
    config: GRPOConfig,
    context: RunContext,
    spec_hash: str,
    team: Team = SOLO,
) -> TrainResult:
    """Make ``context.updates`` updates, continuing from the newest checkpoint if there is one.

    Args:
        policy: The base policy; changed in place.
        reference: A frozen copy of it.
        suite: Tasks.
        config: Sizes and weights.
        context: Seeds, folder, progress, stop signal.
        spec_hash: What a checkpoint must have been written for.
        team: The processes that share each update; rank 0 alone writes checkpoints.

    Raises:
        Interrupted: If asked to stop, after the state was saved.
        CheckpointError: If there are checkpoints and none can be used.
        FloatingPointError: See :func:`run_update`.
    """
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True
    )
    store = CheckpointStore(context.cell_dir / "checkpoint", spec_hash)
    names: dict[torch.Tensor, str] = {
        parameter: name for name, parameter in policy.named_parameters()
    }
    history: list[dict[str, float]] = []
    saved = store.load(lambda message: context.report({"event": "warning", "message": message}))
    if saved is not None:
        policy.load_state_dict(saved.policy)
        restore_adamw(optimizer, names, saved.optimizer)
        history = saved.history
        context.report({"event": "resumed", "phase": "rl", "done": saved.update})

    def save() -> None:
        if team.rank:
            return
        moments = adamw_tensors(optimizer, names)
        store.save(Checkpoint(len(history), policy.state_dict(), moments, history))

    members = team.share_of(range(config.group_size))
    envs = [suite.make_env("train") for _ in range(config.groups * len(members))]
    while len(history) < context.updates:
        if team.agree(context.should_stop()):
            save()
            raise Interrupted(f"stopped after {len(history)} of {context.updates} updates")
        history.append(
            run_update(
                policy, reference, optimizer, suite, config, context.seeds, len(history), envs, team
            )
        )
        context.report(_progress(history, context.updates))
        if len(history) % config.checkpoint_every == 0 or len(history) == context.updates:
            save()
    return TrainResult(history, summarise(history), len(history))


def _progress(history: Sequence[Mapping[str, float]], total: int) -> dict[str, Any]:
    return {"event": "progress", "phase": "rl", "done": len(history), "total": total} | dict(
        history[-1]
    )


def summarise(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Whole-run counters: sums of what is counted, maxima of what is bounded."""
    summed = ("zero_variance_groups", "invalid_rewards", "tokens", "sampled_tokens")
    largest = ("max_log_ratio_gap", "max_log_ratio")
    counters = {name: sum((row[name] for row in history), 0.0) for name in summed}
    return counters | {name: max((row[name] for row in history), default=0.0) for name in largest}
