"""A small decoder-only transformer that acts through tokens under a grammar.

Pre-norm blocks of window attention with sink tokens and sink logits (``methods.attention``) and
SwiGLU, after gpt-oss (arXiv 2508.10925), plus two parts that make copying learnable on a CPU:

- a short causal convolution on the embeddings: each position sees its predecessors' embeddings;
- a pointer head (See et al., arXiv 1704.04368, in logit space): scores over the visible earlier
  positions, under the same window-and-sink mask as the attention, are added to the vocabulary
  logits by log-sum-exp over equal tokens: logit'(v) = log(exp(logit(v)) + sum_{j: x_j = v} exp(s_j)).
  The key of position j is read at j - 1: a token is found by what stands before it, as an
  induction head does (Olsson et al., arXiv 2209.11895).

Query and key projections start equal, in the attention and in the pointer, so that both begin as a
search for similar contexts. (Measured: choosing among four tool documents is learnt within 120
supervised steps; with independent projections it is still at chance.)

Log-probabilities are those of the distribution that sampling uses: restricted to the tokens that
the grammar allows. Nothing outside this module knows how the policy works inside.

Shape legend: B trajectories, T positions, N action tokens, R rows, V vocabulary, G grammar states,
Hq/Hkv query/key heads, D head dimension, K visible slots, P pointer key dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.attention import sink_attention
from methods.base import ContextBudget, Grammar
from methods.config import AttentionConfig, PolicyShape
from methods.layers import Block, rms_norm, rotate, select_rows

if TYPE_CHECKING:
    from methods.session import Session


class ActionScores(NamedTuple):
    """What ``SmallPolicy.score`` gives; 0 at every token that is not an action.

    Attributes:
        log_probs: [B, T], log p(tokens[b, t] | tokens[b, :t]) under the grammar, differentiable.
        entropy: [B, T], entropy in nats of the distribution at t; carries no gradient.
    """

    log_probs: Tensor
    entropy: Tensor


class SmallPolicy(nn.Module):
    """The policy: ``score`` for training, ``session`` for cached generation.

    Args:
        shape: Sizes.
        attention: How it attends; the same parameters can be run under another one
            (``convert_state``).
        context: The benchmark's budget, W and S.
        vocab_size: V.
        generator: Source of the initial parameters; the same seed gives the same parameters
            whatever the attention config. None (seed 0) where weights are loaded anyway.

    Raises:
        ValueError: If the heads do not divide or the head dimension is odd (RoPE needs pairs).
    """

    def __init__(
        self,
        shape: PolicyShape,
        attention: AttentionConfig,
        context: ContextBudget,
        vocab_size: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if shape.num_heads % shape.num_kv_heads or shape.head_dim % 2:
            raise ValueError(
                f"num_heads={shape.num_heads} must be a multiple of num_kv_heads="
                f"{shape.num_kv_heads}, and head_dim={shape.head_dim} even; change PolicyShape"
            )
        self.shape, self.attention, self.context = shape, attention, context
        self.vocab_size = vocab_size
        width, pointer = shape.d_model, shape.pointer_dim
        self.embedding = nn.Parameter(torch.empty(vocab_size, width))
        self.conv = nn.Parameter(torch.empty(shape.conv_width, width, width))
        self.blocks = nn.ModuleList(
            Block(shape, attention.sink_logits) for _ in range(shape.num_layers)
        )
        self.final_norm = nn.Parameter(torch.ones(width))
        self.head = nn.Parameter(torch.empty(vocab_size, width))
        self.pointer_norm = nn.Parameter(torch.ones(width))
        self.pointer_key = nn.Parameter(torch.empty(pointer, width))
        self.pointer_query = nn.Parameter(torch.empty(pointer + 1, width))  # last row: open or shut
        self._initialise(generator or torch.Generator().manual_seed(0))
        self._rotation = torch.empty(0, shape.head_dim // 2, dtype=torch.complex64)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Normal with std 1/sqrt(fan in); what writes to the residual also by 1/sqrt(2 layers).

        Queries then start as copies of the keys that they are compared with.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            std = parameter.shape[-1] ** -0.5
            if name.endswith((".out", ".down")):
                std /= math.sqrt(2 * self.shape.num_layers)
            elif name == "embedding":
                std = 0.5
            elif name in {"conv", "head"}:
                std *= 0.5
            parameter.normal_(0.0, std, generator=generator)
        self.pointer_query[:-1] = self.pointer_key
        shape, share = self.shape, self.shape.num_heads // self.shape.num_kv_heads
        for block in self.ordered_blocks():
            heads = block.qkv.view(-1, shape.head_dim, shape.d_model)
            keys = heads[shape.num_heads : shape.num_heads + shape.num_kv_heads]
            heads[: shape.num_heads] = keys.repeat_interleave(share, dim=0)

    # -- what others may ask -------------------------------------------------------------------

    @property
    def num_sink_tokens(self) -> int:
        """S as it attends now: 0 without sink tokens."""
        return self.context.num_sink_tokens if self.attention.sink_tokens else 0

    @property
    def window(self) -> int:
        """W as it attends now, widened by the budget's S if the config says so."""
        wider = self.context.num_sink_tokens if self.attention.widen_window else 0
        return self.context.window + wider

    @property
    def num_parameters(self) -> int:
        """Learned numbers."""
        return sum(p.numel() for p in self.parameters())

    def summary(self) -> dict[str, Any]:
        """JSON-ready facts about the policy for run records."""
        return {
            "parameters": self.num_parameters,
            "vocab_size": self.vocab_size,
            "window": self.window,
            "num_sink_tokens": self.num_sink_tokens,
            "sink_logits": self.attention.sink_logits,
            "backend": self.attention.backend,
            "cache": self.attention.cache,
        }

    def session(self, batch_size: int, grammar: Grammar) -> Session:
        """Cached generation of ``batch_size`` trajectories with the parameters as they are now."""
        from methods.session import Session

        return Session(self, batch_size, grammar)

    # -- training path -------------------------------------------------------------------------

    def score(
        self,
        tokens: Tensor,
        lengths: Tensor,
        action_mask: Tensor,
        grammar_state: Tensor,
        allowed: Tensor,
    ) -> ActionScores:
        """Log-probabilities of given actions, as sampling would have had them.

        Args:
            tokens: int64 [B, T], padded on the right.
            lengths: int64 [B], positions that count.
            action_mask: bool [B, T], tokens that the policy wrote (none at position 0).
            grammar_state: int64 [B, T], grammar state before each action token.
            allowed: bool [G, V], the grammar.

        Returns:
            ActionScores of [B, T] each.

        Raises:
            ValueError: If an action stands at position 0, in the padding, or is not allowed.
        """
        batch, length = tokens.shape
        rows, columns = torch.nonzero(action_mask, as_tuple=True)
        targets, states = tokens[rows, columns], grammar_state[rows, columns]
        _check_actions(rows, columns, lengths, targets, states, allowed)
        source = rows * length + columns - 1  # the position that predicts the token
        features, hidden = self._trunk(tokens, source)
        bias = grammar_bias(allowed).index_select(0, states)
        logits = F.linear(hidden, self.head) + bias
        scores, ids, visible = self._point(features, hidden, tokens, source)
        reachable = visible & (bias.gather(1, ids) == 0)
        scores = torch.where(reachable, scores, -math.inf)
        norm = torch.cat([logits, scores], dim=1).logsumexp(1)
        same = torch.where(ids == targets[:, None], scores, -math.inf)
        target = torch.cat([logits.gather(1, targets[:, None]), same], dim=1).logsumexp(1)
        with torch.no_grad():
            share = (logits - norm[:, None]).exp_()
            share.scatter_add_(1, ids, (scores - norm[:, None]).exp_())
            nats = -torch.special.xlogy(share, share).sum(1)
        place = rows * length + columns
        empty = hidden.new_zeros(batch * length)
        log_probs = empty.index_copy(0, place, target - norm).view(batch, length)
        return ActionScores(log_probs, empty.index_copy(0, place, nats).view(batch, length))

    def _trunk(self, tokens: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """The layers over whole trajectories.

        Padding stands on the right, where causal attention keeps it from every position that
        counts, so that no document ids are needed. After the last attention only the positions
        that predict an action go on.

        Returns:
            Input of the last layer [B, T, d], final hidden state at ``source`` [N, d].
        """
        shape = self.shape
        batch, length = tokens.shape
        x = F.embedding_bag(self._conv_ids(tokens), self.conv_table(), mode="sum")
        x = x.view(batch, length, shape.d_model)
        rotation = self.rotations(length)[:length, None]
        groups = [shape.num_heads + shape.num_kv_heads, shape.num_kv_heads]
        features = x
        for number, block in enumerate(self.ordered_blocks()):
            features = x
            qkv = F.linear(rms_norm(x, block.attention_norm), block.qkv)
            query_key, value = torch.split_with_sizes(
                qkv.view(batch, length, -1, shape.head_dim), groups, dim=2
            )
            query, key = torch.split_with_sizes(
                rotate(query_key, rotation), [shape.num_heads, shape.num_kv_heads], dim=2
            )
            mixed = sink_attention(
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                window=self.window,
                num_sink_tokens=self.num_sink_tokens,
                sink_logits=block.sink_logits,
                backend=self.attention.backend,
            )
            mixed = mixed.transpose(1, 2).reshape(batch * length, -1)
            x = x.view(batch * length, -1)
            if number == shape.num_layers - 1:
                mixed, x = select_rows(mixed, source), select_rows(x, source)
            x = block.feed(x + F.linear(mixed, block.out))
            if number < shape.num_layers - 1:
                x = x.view(batch, length, -1)
        return features, rms_norm(x, self.final_norm)

    def _point(
        self, features: Tensor, hidden: Tensor, tokens: Tensor, source: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Pointer scores of the action positions, in memory linear in T.

        Queries are laid out in blocks of W; a block sees the sink tokens, the block before and
        itself, which covers every visible position.

        Returns:
            scores [N, K], token ids [N, K], visible bool [N, K] with K = min(S, T) + 2 W.
        """
        batch, length, _ = features.shape
        window, sinks = min(self.window, length), min(self.num_sink_tokens, length)
        blocks = -(-length // window)
        extra = blocks * window - length
        keys = F.linear(rms_norm(features, self.pointer_norm), self.pointer_key)
        keys = F.pad(keys[:, :-1], (0, 0, 1, 0))  # nothing stands before the first token
        pointed = F.linear(hidden, self.pointer_query)
        query, gate = pointed[:, :-1] * keys.shape[-1] ** -0.5, pointed[:, -1:]
        row, time = source // length, source % length
        place = row * (blocks * window) + time
        grid = query.new_zeros(batch * blocks * window, query.shape[1]).index_copy(0, place, query)
        banded = F.pad(keys, (0, 0, window, extra)).view(batch, blocks + 1, window, -1)
        banded = torch.cat([banded[:, :-1], banded[:, 1:]], dim=2)
        near = grid.view(batch, blocks, window, -1) @ banded.transpose(2, 3)
        far = grid.view(batch, blocks * window, -1) @ keys[:, :sinks].transpose(1, 2)
        scores = torch.cat(
            [select_rows(far.flatten(0, 1), place), select_rows(near.flatten(0, 2), place)], dim=1
        )
        with torch.no_grad():
            ids = F.pad(tokens, (window, extra)).unfold(1, 2 * window, window)
            ids = ids[row, time // window]
            ids = torch.cat([tokens[:, :sinks][row], ids], dim=1)
            start = (time // window - 1) * window
            position = start[:, None] + torch.arange(2 * window)
            now = time[:, None]
            seen = (position > now - self.window) & (position <= now) & (position >= sinks)
            visible = torch.cat([torch.arange(sinks) <= now, seen], dim=1)
        return scores + gate, ids, visible

    # -- shared by both paths ------------------------------------------------------------------

    def ordered_blocks(self) -> Sequence[Block]:
        """The layers, typed."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def conv_table(self) -> Tensor:
        """[w * V + 1, d]: what a token adds to the position k after it, and a zero row for none.

        A convolution over embeddings is a sum of table look-ups, since there are only V of them.
        """
        mixed = torch.einsum("vd,kde->kve", self.embedding, self.conv)
        first = (mixed[:1] + self.embedding).flatten(0, 1)
        zero = self.embedding.new_zeros(1, self.embedding.shape[1])
        return torch.cat([first, mixed[1:].flatten(0, 1), zero])

    def _conv_ids(self, tokens: Tensor) -> Tensor:
        """[B * T, w] rows of the table: the token itself, its predecessor, and so on."""
        none = self.shape.conv_width * self.vocab_size
        shifted = [
            F.pad(tokens + k * self.vocab_size, (k, 0), value=none)[:, : tokens.shape[1]]
            for k in range(self.shape.conv_width)
        ]
        return torch.stack(shifted, dim=2).flatten(0, 1)

    def rotations(self, length: int) -> Tensor:
        """complex [>= length, D/2]: RoPE (arXiv 2104.09864) of each position, grown on demand."""
        if self._rotation.shape[0] < length:
            size = max(512, 1 << (length - 1).bit_length())
            half = self.shape.head_dim // 2
            rate = self.shape.rope_base ** (-np.arange(half) / half)
            angle = np.arange(size)[:, None] * rate[None, :]
            # a table made under inference_mode could not be used for training
            with torch.inference_mode(False):
                self._rotation = torch.from_numpy(np.exp(1j * angle).astype(np.complex64))
        return self._rotation


def _check_actions(
    rows: Tensor, columns: Tensor, lengths: Tensor, targets: Tensor, states: Tensor, allowed: Tensor
) -> None:
    """Refuse actions that no sampling could have produced, before they turn into NaN."""
    bad = (columns < 1) | (columns >= lengths[rows]) | (states < 0)
    bad |= ~allowed[states.clamp(min=0), targets]
    if bool(bad.any()):
        at = int(torch.nonzero(bad)[0, 0])
        raise ValueError(
            f"row {int(rows[at])}, position {int(columns[at])}: token {int(targets[at])} cannot be "
            f"an action in grammar state {int(states[at])} (length {int(lengths[rows[at]])}). "
            "Actions stand at positions 1..length-1 and obey the grammar; check action_mask and "
            "grammar_state"
        )


def grammar_bias(allowed: Tensor) -> Tensor:
    """float [G, V]: 0 where allowed, -inf elsewhere."""
    return torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)


def convert_state(state: Mapping[str, Tensor], attention: AttentionConfig) -> dict[str, Tensor]:
    """A policy's state dict made loadable under another attention config.

    Sink logits (the parameters named ``blocks.<i>.sink_logits``) are dropped when ``attention`` has
    none; every other parameter is the same under every config.

    Raises:
        ValueError: If ``attention`` needs sink logits that ``state`` does not have: they would have
            to be invented.
    """
    sinks = [name for name in state if name.endswith(".sink_logits")]
    if attention.sink_logits and not sinks:
        raise ValueError(
            "the state has no sink logits, but the attention config asks for them; set "
            "sink_logits=False or train the base policy with sink_logits=True"
        )
    dropped = set() if attention.sink_logits else set(sinks)
    return {name: value for name, value in state.items() if name not in dropped}
