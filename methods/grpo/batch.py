"""The batch of one policy update, and how it is cut up.

A ``TensorDict`` of batch size [B] passes through the stages of ``methods.grpo.stages``:

=================== ============ ==================================================================
key                 type, shape  meaning
=================== ============ ==================================================================
tokens              int64 [B, T] ids as sampled and observed, right-padded with the codec's pad id
lengths             int64 [B]    positions before the padding
action_mask         bool [B, T]  True where the policy sampled the token: the loss mask
grammar_state       int64 [B, T] state before each sampled token, -1 elsewhere
rollout_log_probs   f32 [B, T]   log pi as sampled through the rolling cache, 0 elsewhere
groups              int64 [B]    which trajectories share a task
old_log_probs       f32 [B, T]   log pi before the update, training path (``compute_log_prob``)
entropy             f32 [B, T]   nats, same pass
ref_log_probs       f32 [B, T]   log pi of the frozen base (``compute_ref_log_prob``)
rewards             f64 [B]      return of the trajectory (``reward``)
advantages          f64 [B]      group-relative (``compute_advantage``)
=================== ============ ==================================================================

Shape legend: B trajectories of the update, T positions of the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from tensordict import TensorDict

if TYPE_CHECKING:
    from methods.base import Episode

# Trajectories a pass without gradient. More at once would save a few Python calls and compute more
# padding: lengths differ tenfold.
SCORING_BATCH = 8


class Scores(Protocol):
    """What a policy says about given tokens: log_probs [B, T] and entropy [B, T], 0 elsewhere."""

    @property
    def log_probs(self) -> torch.Tensor:
        """Nats, with gradient."""
        ...

    @property
    def entropy(self) -> torch.Tensor:
        """Nats, without gradient."""
        ...


class ScoringPolicy(Protocol):
    """The part of a policy that training needs, besides ``methods.rollout.generate``."""

    def score(
        self,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        action_mask: torch.Tensor,
        grammar_state: torch.Tensor,
        allowed: torch.Tensor,
    ) -> Scores:
        """Log-probabilities of ``tokens`` under the grammar where ``action_mask`` is True."""
        ...


def length_sorted_slices(lengths: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Row indices in micro-batches of similar length, so that little padding is computed.

    Args:
        lengths: int64 [B].
        size: Rows a micro-batch.

    Yields:
        int64 [<= size]; ties keep their order, so the split is a function of the lengths.
    """
    order = torch.argsort(lengths, stable=True)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def episodes_to_batch(
    episodes: Sequence[Episode], groups: Sequence[int], pad_id: int
) -> TensorDict:
    """Pad episodes on the right into a batch of the first six keys.

    Args:
        episodes: B episodes.
        groups: B group numbers.
        pad_id: Token id of the padding.
    """
    size, longest = len(episodes), max(len(episode.tokens) for episode in episodes)
    tokens = torch.full((size, longest), pad_id, dtype=torch.int64)
    action_mask = torch.zeros((size, longest), dtype=torch.bool)
    grammar_state = torch.full((size, longest), -1, dtype=torch.int64)
    log_probs = torch.zeros((size, longest), dtype=torch.float32)
    for row, episode in enumerate(episodes):
        length = len(episode.tokens)
        tokens[row, :length] = torch.tensor(episode.tokens)
        action_mask[row, :length] = torch.tensor(episode.action_mask)
        grammar_state[row, :length] = torch.tensor(episode.grammar_state)
        log_probs[row, :length] = torch.tensor(episode.log_probs)
    return TensorDict(
        {
            "tokens": tokens,
            "lengths": torch.tensor([len(episode.tokens) for episode in episodes]),
            "action_mask": action_mask,
            "grammar_state": grammar_state,
            "rollout_log_probs": log_probs,
            "groups": torch.tensor(groups, dtype=torch.int64),
        },
        batch_size=[size],
    )


def score_rows(
    policy: ScoringPolicy, batch: TensorDict, rows: torch.Tensor, allowed: torch.Tensor
) -> tuple[Scores, int]:
    """Scores of some rows, cut to the longest of them; also that length."""
    lengths = batch["lengths"][rows]
    longest = int(lengths.max())
    scores = policy.score(
        batch["tokens"][rows, :longest],
        lengths,
        batch["action_mask"][rows, :longest],
        batch["grammar_state"][rows, :longest],
        allowed,
    )
    return scores, longest


@torch.no_grad()
def score_all(
    policy: ScoringPolicy, batch: TensorDict, allowed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies [B, T] of the whole batch, without gradient."""
    log_probs = torch.zeros(batch["tokens"].shape, dtype=torch.float32)
    entropy = torch.zeros_like(log_probs)
    for rows in length_sorted_slices(batch["lengths"], SCORING_BATCH):
        scores, longest = score_rows(policy, batch, rows, allowed)
        log_probs[rows, :longest] = scores.log_probs
        entropy[rows, :longest] = scores.entropy
    return log_probs, entropy


def split_minibatches(
    groups: torch.Tensor, count: int, generator: np.random.Generator
) -> list[torch.Tensor]:
    """Rows of each optimiser step: groups in random order, cut into ``count`` shares.

    A group is never cut, so that the advantages of a step sum to zero, and which groups share a
    step does not depend on which of their members this process holds.

    Args:
        groups: int64 [B].
        count: Optimiser steps; ``GRPOConfig`` makes it divide the number of groups.
        generator: Decides the order of the groups.
    """
    order = generator.permutation(int(groups.max()) + 1)
    rank = torch.from_numpy(np.argsort(order))[groups]
    rows = torch.argsort(rank, stable=True)
    sizes = torch.bincount(rank, minlength=len(order)).numpy()
    shares = [int(part.sum()) for part in np.array_split(sizes, count)]
    return list(torch.split_with_sizes(rows, shares))
