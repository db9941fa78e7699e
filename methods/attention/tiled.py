"""Blockwise attention with the blocks folded into the batch dimension: small windows.

A row of T positions is cut into blocks of C queries (C is about W / 2: shorter blocks waste less of
the band, longer ones make better matrix products). Block n needs the keys of blocks n - m .. n, with
m = ceil((W - 1) / C), and the S sink keys of its document. In one long buffer of keys these
overlapping spans are a strided *view*; only beside sink keys is a tile's share of them copied.

What a block may see depends on n only while n * C < W + S - 1; a table holds one additive mask for
each of these first blocks and one for all later ones. A tile is as many blocks as keep the scores in
the processor's second-level cache.

The same plan serves packed rows: every document is moved to the start of a block of its own
(``methods/attention/packing.py``), so that the mask needs to know nothing but "which block of its
document". Padding slots of a block lie behind the document's last query; no real query sees them.

A non-finite value in one row may spread to others, as zero times infinity in a product.

Shape legend: B rows, Hq query heads, Hkv key heads, G = Hq / Hkv, T positions, D head dimension,
K blocks a row, N = B * Hkv * K blocks in all, L = S + (m + 1) * C key columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.attention.blocks import PlanKey, rowsum, tile_elements

_PART_ELEMENTS = 1 << 20


@dataclass(frozen=True, eq=False)
class TiledPlan:
    """Forward and backward pass for one cutting into blocks.

    Args:
        key: Sizes and flags.
        block: C.
        back: m, how many earlier blocks a block reaches.
        sinks: S, cut to what can matter.
        blocks: K, blocks a row.
        masks: [kinds, C, (1 +) L], see ``mask_table``.
        mask_of: int64 [N * G], which mask a block and head of its group uses.
        sink_slots: int64 [K * S], where each block finds its sink keys in its row; None: at 0..S-1.
        scale: Factor on the scores; no table depends on it.
    """

    key: PlanKey
    block: int
    back: int
    sinks: int
    blocks: int
    masks: Tensor
    mask_of: Tensor
    sink_slots: Tensor | None
    scale: float = 1.0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, logits: Tensor | None) -> Tensor:
        """Output [B, Hq, T, D] for query [B, Hq, T, D], key and value [B, Hkv, T, D]."""
        parts = self._parts(key)
        if len(parts) == 1:
            return self._forward(query, key, value, logits)
        out = query.new_empty(query.shape)
        for rows, heads, keys in parts:
            some = None if logits is None else logits[heads]
            out[rows, heads] = self._forward(
                query[rows, heads], key[rows, keys], value[rows, keys], some
            )
        return out

    def backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        logits: Tensor | None,
        out: Tensor,
        grad_out: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Gradients of query, key, value and sink logits (equations in ``LoopedPlan.backward``)."""
        parts = self._parts(key)
        if len(parts) == 1:
            return self._backward(query, key, value, logits, out, grad_out)
        grads = [x.new_empty(x.shape) for x in (query, key, value)]
        grad_logits = None if logits is None else torch.zeros_like(logits)
        for rows, heads, keys in parts:
            of_query, of_key, of_value, of_logits = self._backward(
                query[rows, heads],
                key[rows, keys],
                value[rows, keys],
                None if logits is None else logits[heads],
                out[rows, heads],
                grad_out[rows, heads],
            )
            grads[0][rows, heads] = of_query
            grads[1][rows, keys], grads[2][rows, keys] = of_key, of_value
            if grad_logits is not None and of_logits is not None:
                grad_logits[heads] += of_logits
        return (*grads, grad_logits)  # type: ignore[return-value]

    def _parts(self, key: Tensor) -> list[tuple[slice, slice, slice]]:
        """(rows, query heads, key heads) to work on in turn, so that the copies stay small.

        Every sequence has the same blocks, so a part uses the beginning of ``mask_of``.
        """
        rows, heads, length, width = key.shape
        fits = max(1, _PART_ELEMENTS // (length * width))
        row_step, head_step = max(1, fits // heads), min(fits, heads)
        group = self.key.group
        return [
            (
                slice(r, r + row_step),
                slice(h * group, (h + head_step) * group),
                slice(h, h + head_step),
            )
            for r in range(0, rows, row_step)
            for h in range(0, heads, head_step)
        ]

    def _forward(self, query: Tensor, key: Tensor, value: Tensor, logits: Tensor | None) -> Tensor:
        queries, scale = self._cut(query), self.scale
        spans, sinks = self._spans(key), self._sink_keys(key)
        value_spans, value_sinks = self._spans(value), self._sink_keys(value)
        columns = self._logit_columns(logits, query.shape[0])
        out = torch.empty_like(queries)
        skip = int(self.key.has_logit)
        weights = self._buffer(queries)
        for part, scores in self._tiles(queries, columns):
            keys = _join(sinks, spans, part)
            scores[..., skip:].baddbmm_(queries[part], keys.transpose(1, 2), alpha=scale)
            weight = torch.softmax(scores, -1, out=weights[: scores.shape[0]])
            torch.bmm(weight[..., skip:], _join(value_sinks, value_spans, part), out=out[part])
        return self._uncut(out, query)

    def _backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        logits: Tensor | None,
        out: Tensor,
        grad_out: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        queries, upstream, scale = self._cut(query), self._cut(grad_out), self.scale
        delta = self._cut(rowsum(grad_out, out))
        spans, sinks = self._spans(key), self._sink_keys(key)
        value_spans, value_sinks = self._spans(value), self._sink_keys(value)
        columns = self._logit_columns(logits, query.shape[0])
        count, skip = queries.shape[0], int(self.key.has_logit)

        grad_query = torch.empty_like(queries)
        grad_keys = _SpanSum(self, count, key)
        grad_values = _SpanSum(self, count, value)
        grad_logit = queries.new_empty(count, queries.shape[1], 1) if skip else None
        weights = self._buffer(queries)
        sums = queries.new_empty(weights.shape[0], weights.shape[2] - skip, queries.shape[2])
        for part, scores in self._tiles(queries, columns):
            keys, values = _join(sinks, spans, part), _join(value_sinks, value_spans, part)
            score = scores[..., skip:]
            score.baddbmm_(queries[part], keys.transpose(1, 2), alpha=scale)
            weight = torch.softmax(scores, -1, out=weights[: scores.shape[0]])
            if grad_logit is not None:
                torch.mul(weight[..., :1], delta[part], out=grad_logit[part])
            weight, total = weight[..., skip:], sums[: scores.shape[0]]
            grad_values.add(part, torch.bmm(weight.transpose(1, 2), upstream[part], out=total))
            torch.bmm(upstream[part], values.transpose(1, 2), out=score)
            score.sub_(delta[part]).mul_(weight)
            target = grad_query[part]
            torch.baddbmm(target, score, keys, beta=0, alpha=scale, out=target)
            torch.baddbmm(
                total, score.transpose(1, 2), queries[part], beta=0, alpha=scale, out=total
            )
            grad_keys.add(part, total)
        if grad_logit is not None:
            by_head = grad_logit.view(query.shape[0], -1, self.blocks, self.key.group, self.block)
            logit_sum: Tensor | None = by_head.sum((0, 2, 4)).neg_().flatten()
        else:
            logit_sum = None
        return self._uncut(grad_query, query), grad_keys.result(), grad_values.result(), logit_sum

    def _tiles(self, queries: Tensor, columns: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the N blocks, each with scores preset to its masks and sink logits."""
        group, buffer = self.key.group, self._buffer(queries)
        count, step = queries.shape[0], buffer.shape[0]
        for first in range(0, count, step):
            part = slice(first, min(count, first + step))
            size = part.stop - first
            scores = buffer[:size]
            by_head = scores.view(size * group, self.block, -1)
            which = self.mask_of[first * group : part.stop * group]
            torch.index_select(self.masks, 0, which, out=by_head)
            if columns is not None:
                by_head[..., 0] = columns[first * group : part.stop * group]
            yield part, scores

    def _buffer(self, queries: Tensor) -> Tensor:
        """An empty tile [n, G * C, (1 +) L]."""
        tokens, columns = queries.shape[1], self.masks.shape[2]
        step = max(1, tile_elements(queries.device) // (tokens * columns))
        return queries.new_empty(min(step, queries.shape[0]), tokens, columns)

    def _cut(self, x: Tensor) -> Tensor:
        """[B, Hq, T, D] -> blocks [N, G * C, D], zeros behind T."""
        rows, heads, length, width = x.shape
        group, block = self.key.group, self.block
        shape = (rows * heads // group, self.blocks, group * block, width)
        if group == 1 and length == self.blocks * block:
            return x.reshape(-1, block, width)
        out = x.new_empty(shape)
        into = out.view(rows * heads // group, self.blocks, group, block, width).transpose(1, 2)
        source = x.reshape(rows * heads // group, group, length, width)
        whole = length // block
        if whole:
            body = source[:, :, : whole * block]
            into[:, :, :whole] = body.reshape(-1, group, whole, block, width)
        if whole < self.blocks:
            rest = length - whole * block
            into[:, :, whole, :rest] = source[:, :, whole * block :]
            into[:, :, whole, rest:] = 0
        return out.view(-1, group * block, width)

    def _uncut(self, blocks: Tensor, like: Tensor) -> Tensor:
        """The inverse of ``_cut``: contiguous, in the shape of ``like``."""
        rows, heads, length, width = like.shape
        group, block = self.key.group, self.block
        by_head = blocks.view(-1, self.blocks, group, block, width).transpose(1, 2)
        out = by_head.reshape(rows, heads, self.blocks * block, width)
        return out[:, :, :length].contiguous()

    def _spans(self, x: Tensor) -> Tensor:
        """The overlapping key spans [N, (m + 1) * C, D] of [B, Hkv, T, D], a view of one copy."""
        rows, heads, length, width = x.shape
        block, count = self.block, rows * heads * self.blocks
        lead = self.back * block
        buffer = x.new_empty(lead + count * block, width)
        buffer[:lead] = 0
        body = buffer[lead:].view(rows, heads, self.blocks * block, width)
        body[:, :, :length] = x
        body[:, :, length:] = 0
        return buffer.as_strided((count, lead + block, width), (block * width, width, 1))

    def _sink_keys(self, x: Tensor) -> Tensor | None:
        """[N, S, D]: each block's sink keys."""
        if not self.sinks:
            return None
        rows, heads, _, width = x.shape
        if self.sink_slots is not None:
            return x.index_select(2, self.sink_slots).view(-1, self.sinks, width)
        shape = (rows, heads, self.blocks, self.sinks, width)
        return x[:, :, None, : self.sinks].expand(shape).reshape(-1, self.sinks, width)

    def _logit_columns(self, logits: Tensor | None, rows: int) -> Tensor | None:
        """[N * G, 1]: the sink logit of each block and head of its group."""
        if logits is None:
            return None
        group = self.key.group
        by_group = logits.view(1, -1, 1, group).expand(rows, -1, self.blocks, group)
        return by_group.reshape(-1, 1)


def _join(sinks: Tensor | None, spans: Tensor, part: slice) -> Tensor:
    return spans[part] if sinks is None else torch.cat([sinks[part], spans[part]], 1)


class _SpanSum:
    """Adds up what the blocks send back to the keys or values that they share."""

    def __init__(self, plan: TiledPlan, count: int, like: Tensor) -> None:
        self.plan, self.like = plan, like
        width = like.shape[3]
        self.body = like.new_zeros(plan.back + count, plan.block, width)
        self.sinks = like.new_empty(count, plan.sinks, width)

    def add(self, part: slice, sums: Tensor) -> None:
        """Add sums [n, L, D] of the blocks in ``part``."""
        sinks, block = self.plan.sinks, self.plan.block
        for j in range(self.plan.back + 1):
            columns = slice(sinks + j * block, sinks + (j + 1) * block)
            self.body[part.start + j : part.stop + j] += sums[:, columns]
        if sinks:
            self.sinks[part] = sums[:, :sinks]

    def result(self) -> Tensor:
        """The gradient, in the shape of the keys."""
        plan, (rows, heads, length, width) = self.plan, self.like.shape
        body = self.body[plan.back :].view(rows, heads, -1, width)[:, :, :length]
        if plan.sinks:
            if plan.sink_slots is None:
                by_block = self.sinks.view(rows, heads, plan.blocks, plan.sinks, width)
                body[:, :, : plan.sinks] += by_block.sum(2)
            else:
                by_slot = self.sinks.view(rows, heads, -1, width)
                body.index_add_(2, plan.sink_slots, by_slot)
        return body.contiguous()
