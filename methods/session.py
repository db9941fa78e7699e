"""Cached generation with the small policy: what ``SmallPolicy.session`` gives.

The same arithmetic as ``SmallPolicy.score`` arranged for speed on one CPU thread: new tokens are
packed without padding, keys and values live in a ring (``methods.attention.cache``), the last layer
runs only for each row's newest token.

Shape legend: B trajectories, R rows with new tokens, N packed new tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from methods.attention.cache import SinkCache
from methods.base import Grammar
from methods.policy import SmallPolicy, grammar_bias

_MIN_PIECE = 64  # prefill in pieces of at least this many tokens: memory stays linear in the chunk


class Session:
    """Cached generation of B trajectories that advance together.

    ``extend`` or ``step`` make the next-token distribution of some rows current (``ready``);
    ``sample`` draws from it. A sampled token is not part of the context until it is fed back.
    """

    def __init__(self, policy: SmallPolicy, batch_size: int, grammar: Grammar) -> None:
        shape = policy.shape
        self._policy = policy
        self.cache = SinkCache(
            num_layers=shape.num_layers,
            batch_size=batch_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            window=policy.window,
            num_sink_tokens=policy.num_sink_tokens,
            pointer_dim=shape.pointer_dim,
            mode=policy.attention.cache,
            scale=1.0,  # part of the folded query weights
        )
        with torch.inference_mode():
            self._table = policy.conv_table()
            self._bias = grammar_bias(torch.from_numpy(grammar.allowed))
            self._layers = [_Layer.fold(policy, n) for n in range(shape.num_layers)]
            heads = [policy.head, policy.pointer_query[:-1] * shape.pointer_dim**-0.5]
            heads.append(policy.pointer_query[-1:])
            self._out = _fold(torch.cat(heads), policy.final_norm)
        self._none = shape.conv_width * policy.vocab_size
        self._offsets = np.arange(shape.conv_width) * policy.vocab_size
        self._tail = np.full((batch_size, shape.conv_width - 1), self._none, dtype=np.int64)
        self._pointer_key = torch.zeros(batch_size, shape.pointer_dim)  # of each row's last token
        self._piece = max(policy.window, _MIN_PIECE)
        self.ready = np.empty(0, dtype=np.int64)

    @torch.inference_mode()
    def extend(self, chunks: Sequence[Sequence[int]]) -> None:
        """Feed row b the tokens ``chunks[b]``; an empty chunk leaves the row alone.

        Long chunks go in pieces that end together, so that every row's last token is in the last.
        """
        rest = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
        done = np.zeros_like(rest)
        self.ready = np.flatnonzero(rest)
        while rest.max() > 0:
            before_last = max(0, -(-int(rest.max()) // self._piece) - 1) * self._piece
            take = np.maximum(rest - before_last, 0)
            tokens = [t for c, i, n in zip(chunks, done, take, strict=True) for t in c[i : i + n]]
            rest, done = rest - take, done + take
            self._forward(np.array(tokens, dtype=np.int64), take, predict=not rest.any())

    @torch.inference_mode()
    def step(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Feed one token [R] to each of some rows int64 [R], in ascending order."""
        lengths = np.zeros(len(self._tail), dtype=np.int64)
        lengths[rows] = 1
        self.ready = rows
        self._forward(tokens, lengths, predict=True)

    @torch.inference_mode()
    def sample(
        self, states: np.ndarray, uniforms: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One token for each ready row, by inverting the distribution function in float64.

        Args:
            states: int64 [R] grammar states.
            uniforms: float64 [R] in [0, 1), or None to take the most likely token.

        Returns:
            token ids int64 [R], log-probabilities float64 [R].
        """
        logits, scores, ids = self._current
        bias = self._bias.index_select(0, torch.from_numpy(states))
        logits, scores = logits + bias, scores + bias.gather(1, ids)
        top = torch.maximum(logits.amax(1, keepdim=True), scores.amax(1, keepdim=True))
        weights = logits.sub_(top).exp_()
        weights.scatter_add_(1, ids, scores.sub_(top).exp_())
        cumulative = weights.cumsum(1, dtype=torch.float64)
        total = cumulative[:, -1:].numpy()
        if uniforms is None:
            tokens = weights.argmax(1, keepdim=True)
        else:
            target = np.minimum(uniforms[:, None] * total, np.nextafter(total, 0.0))
            tokens = torch.searchsorted(cumulative, torch.from_numpy(target), right=True)
        chosen = weights.gather(1, tokens).numpy().astype(np.float64)
        return tokens.numpy()[:, 0], np.log(chosen / total)[:, 0]

    @torch.inference_mode()
    def select(self, rows: np.ndarray) -> None:
        """Keep only these rows; no row is ready afterwards."""
        self.cache.select(rows)
        self._tail = self._tail[rows]
        self._pointer_key = self._pointer_key[torch.from_numpy(rows)]
        self.ready = np.empty(0, dtype=np.int64)

    def _forward(self, tokens: np.ndarray, lengths: np.ndarray, *, predict: bool) -> None:
        """Packed new tokens [N] through the layers; the last one only where something is read."""
        shape, cache = self._policy.shape, self.cache
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        positions = cache.begin(lengths)
        rotation = self._policy.rotations(int(positions.max()) + 1)[positions][:, None]
        last = cache.last
        x = F.embedding_bag(self._ids(tokens, lengths), self._table, mode="sum")
        final = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            projected = torch.mm(_unit(x), layer.qkv)
            turned = projected[:, : (heads + kv_heads) * dim].view(len(x), -1, dim // 2, 2)
            torch.view_as_complex(turned).mul_(rotation)
            query = projected[:, : heads * dim].view(-1, heads, dim)
            stop = (heads + 2 * kv_heads) * dim
            key_value = projected[:, heads * dim : stop].view(-1, 2, kv_heads, dim)
            if number < final:
                mixed = cache.attend(number, query, key_value, layer.sink_logits)
            else:
                keys = projected[:, stop:]
                if last is not None:
                    query, x = query.index_select(0, last), x.index_select(0, last)
                mixed = cache.attend_last(number, query, key_value, layer.sink_logits)
            if number < final or predict:
                x = torch.addmm(x, mixed, layer.out)
                gate, up = torch.mm(_unit(x), layer.gate_up).chunk(2, dim=1)
                x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        out = torch.mm(_unit(x), self._out)
        scores, ids = cache.point(
            out[:, self._policy.vocab_size : -1],
            self._predecessors(keys, lengths),
            torch.from_numpy(tokens),
        )
        cache.commit()
        self._current = (out[:, : self._policy.vocab_size], scores + out[:, -1:], ids)

    def _predecessors(self, keys: Tensor, lengths: np.ndarray) -> Tensor:
        """Pointer keys [N, P] moved on by one token within each row; remembers each row's last."""
        rows = np.flatnonzero(lengths)
        stops = np.cumsum(lengths[rows])
        shifted = torch.empty_like(keys)
        shifted[1:] = keys[:-1]
        chosen = torch.from_numpy(rows)
        shifted[torch.from_numpy(stops - lengths[rows])] = self._pointer_key[chosen]
        self._pointer_key[chosen] = keys[torch.from_numpy(stops - 1)]
        return shifted

    def _ids(self, tokens: np.ndarray, lengths: np.ndarray) -> Tensor:
        """Rows of the convolution table [N, w] for packed tokens; remembers each row's tail.

        The tail is newest first: what a token adds to its followers depends on how far they are.
        """
        rows, past = np.flatnonzero(lengths), self._tail.shape[1]
        if len(rows) == len(tokens):  # one token a row
            newest = np.concatenate([tokens[:, None], self._tail[rows]], axis=1)
            self._tail[rows] = newest[:, :past]
            return torch.from_numpy(np.where(newest == self._none, newest, newest + self._offsets))
        ids = []
        for row, chunk in zip(rows, np.split(tokens, np.cumsum(lengths[rows])[:-1]), strict=True):
            line = np.concatenate([self._tail[row, ::-1], chunk])
            ids.append(np.lib.stride_tricks.sliding_window_view(line, past + 1)[:, ::-1])
            self._tail[row] = line[::-1][:past]
        seen = np.concatenate(ids)
        return torch.from_numpy(np.where(seen == self._none, seen, seen + self._offsets))


@dataclass(frozen=True)
class _Layer:
    """One layer's weights, transposed, with the norms and scales folded in.

    Attributes:
        qkv: [d, (Hq + 2 Hkv) D], and P more columns for the pointer key in the last layer.
        out: [Hq D, d].
        gate_up: [d, 2 d_ff].
        down: [d_ff, d].
        sink_logits: [Hq] or None.
    """

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    sink_logits: Tensor | None

    @classmethod
    def fold(cls, policy: SmallPolicy, number: int) -> _Layer:
        """Layer ``number`` of the policy as its parameters are now."""
        block, shape = policy.ordered_blocks()[number], policy.shape
        qkv = block.qkv.clone()
        qkv[: shape.num_heads * shape.head_dim] *= shape.head_dim**-0.5
        folded = _fold(qkv, block.attention_norm)
        if number == shape.num_layers - 1:  # the pointer's keys read the same hidden state
            pointer = _fold(policy.pointer_key, policy.pointer_norm)
            folded = torch.cat([folded, pointer], dim=1)
        return cls(
            qkv=folded,
            out=block.out.t().contiguous(),
            gate_up=_fold(block.gate_up, block.feed_norm),
            down=block.down.t().contiguous(),
            sink_logits=block.sink_logits,
        )


def _fold(weight: Tensor, norm: Tensor) -> Tensor:
    """[d, out] so that ``_unit(x) @ folded`` equals ``linear(rms_norm(x, norm), weight)``."""
    return (weight * norm * math.sqrt(norm.shape[0])).t().contiguous()


def _unit(x: Tensor) -> Tensor:
    """Rows scaled to length 1: RMSNorm up to a constant, in two operations instead of ten."""
    length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / length
