"""Frozen configs of the recipes: everything that distinguishes one method from another.

No torch here: the harness hashes a config into a cell id before any heavy import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class AttentionConfig:
    """How a policy attends.

    Args:
        backend: ``methods.attention`` backend; "auto" is flex on CUDA and blockwise elsewhere.
        sink_tokens: Keep the episode's first S positions visible to every later query.
        sink_logits: Use the policy's learned logit a head in the softmax denominator (gpt-oss).
        widen_window: Add S to the window W (a policy without sink tokens then sees as many
            positions as one with them).
        cache: "rolling" keeps S + W entries a layer; "full" keeps every position (what an eager
            implementation does).
    """

    backend: Literal["auto", "reference", "blockwise", "flex"] = "auto"
    sink_tokens: bool = True
    sink_logits: bool = True
    widen_window: bool = False
    cache: Literal["rolling", "full"] = "rolling"


@dataclass(frozen=True)
class PolicyShape:
    """Size of the small decoder-only transformer (about 0.4 M parameters)."""

    d_model: int = 96
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 24
    d_ff: int = 288
    conv_width: int = 3
    rope_base: float = 1000.0
    pointer_dim: int = 32


@dataclass(frozen=True)
class SupervisedConfig:
    """How the base policy is trained on a scripted expert (AdamW, cosine to zero).

    Args:
        steps: Optimiser steps.
        batch_size: Episodes a step.
        learning_rate: Peak rate.
        weight_decay: AdamW's, decoupled from the gradient.
        warmup: Steps of linear warm-up.
        noisy_from: Share of the steps after which the noisy expert takes over from the clean one.
        max_grad_norm: Gradients are scaled down to this norm.
        micro_batch: Episodes a forward pass (padding and memory only; cannot change the loss).
    """

    steps: int = 400
    batch_size: int = 16
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup: int = 20
    noisy_from: float = 0.8
    max_grad_norm: float = 1.0
    micro_batch: int = 4


@dataclass(frozen=True)
class GRPOConfig:
    """Group-relative policy optimisation, without a value model (DeepSeekMath, arXiv 2402.03300).

    Args:
        groups: Tasks an update.
        group_size: G, fresh trajectories of the same task.
        learning_rate: AdamW, constant.
        clip: eps of the clipped ratio.
        beta: Weight of the KL penalty to the base policy (k3 estimator).
        minibatches: Optimiser steps an epoch; more than one, or the clip would be dead code.
        epochs: Passes over the update's trajectories.
        max_grad_norm: Gradients are scaled down to this norm.
        micro_batch: Trajectories a forward pass (padding and memory only; cannot change the loss).
        checkpoint_every: Updates between checkpoints.
    """

    groups: int = 6
    group_size: int = 6
    learning_rate: float = 3e-4
    clip: float = 0.2
    beta: float = 0.02
    minibatches: int = 2
    epochs: int = 1
    micro_batch: int = 4
    max_grad_norm: float = 1.0
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        names = ("groups", "group_size", "minibatches", "epochs", "micro_batch", "checkpoint_every")
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(
                    f"GRPOConfig.{name} is {getattr(self, name)}; it must be at least 1"
                )
        if self.groups % self.minibatches:
            allowed = [n for n in range(1, self.groups + 1) if self.groups % n == 0]
            raise ValueError(
                f"GRPOConfig.minibatches is {self.minibatches}, which does not divide the "
                f"{self.groups} groups of an update; allowed: {', '.join(map(str, allowed))}"
            )


@dataclass(frozen=True)
class MethodConfig:
    """A method: how its base attends, how it attends afterwards, and how both are trained.

    Args:
        attention: Attention during RL and evaluation.
        base_attention: Attention while the base policy is trained; its backend is always
            "blockwise", so that methods that differ by kernel alone share one base.
        processes: Processes that share the work of a cell (``methods.team``). A part of the recipe:
            it decides the order of sums, so it is the same on every machine.
        base_seed: Seed of the base policy, apart from the cell's seed, as a pretrained checkpoint
            would be.

    Raises:
        ValueError: If ``processes`` is not between 1 and the smaller of the supervised batch size
            and the GRPO group size: every process needs a share of each step.
    """

    attention: AttentionConfig
    base_attention: AttentionConfig = AttentionConfig(backend="blockwise")
    shape: PolicyShape = field(default_factory=PolicyShape)
    supervised: SupervisedConfig = field(default_factory=SupervisedConfig)
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    processes: int = 2
    base_seed: int = 0

    def __post_init__(self) -> None:
        most = min(self.supervised.batch_size, self.grpo.group_size)
        if not 1 <= self.processes <= most:
            raise ValueError(
                f"MethodConfig.processes is {self.processes}; each process needs a share of every "
                f"group (group_size {self.grpo.group_size}) and of every supervised batch "
                f"({self.supervised.batch_size}): allowed are 1 to {most}"
            )
