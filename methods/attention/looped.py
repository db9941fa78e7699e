"""Blockwise attention, one query block at a time: full causal attention and wide windows.

Block n holds queries ``t0 .. t1 - 1``; it meets the sink keys before ``lo`` and the keys
``lo .. t1 - 1`` with ``lo = max(0, t0 - W + 1)``, as views of the inputs. Extra memory is one tile of
scores, at most block x T.

Shape legend: B rows, Hq query heads, Hkv key heads, G = Hq / Hkv, T positions, D head dimension,
N = B * Hkv, C queries a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.attention.blocks import rowsum, tile_elements


@dataclass(frozen=True)
class _Block:
    """One block of queries against the keys it may see, for ``n0 .. n1 - 1`` of N.

    Args:
        scores: [n, G * C, s + L (+ 1)]; the last column is the sink logit, if any.
        queries: [n, G * C, D], a copy.
        spans: (first key, one past the last, its columns in ``scores``) for each run of keys.
    """

    n0: int
    n1: int
    t0: int
    t1: int
    scores: Tensor
    queries: Tensor
    spans: tuple[tuple[int, int, slice], ...]


@dataclass(frozen=True)
class LoopedPlan:
    """Forward and backward pass for one document a row.

    Args:
        window: W, or None for full causal attention.
        num_sink_tokens: S.
        scale: Factor on the scores.
    """

    window: int | None
    num_sink_tokens: int
    scale: float

    def forward(self, query: Tensor, key: Tensor, value: Tensor, logits: Tensor | None) -> Tensor:
        """Output [B, Hq, T, D] for query [B, Hq, T, D], key and value [B, Hkv, T, D]."""
        rows, heads, length, width = query.shape
        values = value.reshape(-1, length, width)
        group = heads // key.shape[1]
        out = query.new_empty(values.shape[0], group, length, width)
        for block in self._blocks(query, key, logits):
            weights = torch.softmax(block.scores, -1)
            part = torch.zeros_like(block.queries)
            for first, last, columns in block.spans:
                part.baddbmm_(weights[..., columns], values[block.n0 : block.n1, first:last])
            out[block.n0 : block.n1, :, block.t0 : block.t1] = part.view(
                block.n1 - block.n0, group, -1, width
            )
        return out.view(rows, heads, length, width)

    def backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        logits: Tensor | None,
        out: Tensor,
        grad_out: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Gradients of query, key, value and sink logits.

        With P the weights and delta = rowsum(dO * O): dV = P^T dO, dS = P * (dO V^T - delta),
        dQ = scale * dS K, dK = scale * dS^T Q, and the logit, whose value is zero, gets
        -sum(P_sink * delta) (arXiv 2205.14135, appendix B.2, with one more column).
        """
        rows, heads, length, width = query.shape
        group = heads // key.shape[1]
        keys, values = key.reshape(-1, length, width), value.reshape(-1, length, width)
        count = keys.shape[0]
        grads = grad_out.reshape(count, group, length, width)
        delta = rowsum(grad_out, out).view(count, group, length, 1)
        grad_query = query.new_empty(count, group, length, width)
        grad_key, grad_value = torch.zeros_like(keys), torch.zeros_like(values)
        grad_logit = query.new_zeros(count, group)
        for block in self._blocks(query, key, logits):
            heads_, times = slice(block.n0, block.n1), slice(block.t0, block.t1)
            weights = torch.softmax(block.scores, -1)
            upstream = grads[heads_, :, times].flatten(1, 2)
            sums = delta[heads_, :, times].flatten(1, 2)
            part = torch.zeros_like(block.queries)
            for first, last, columns in block.spans:
                weight, score = weights[..., columns], block.scores[..., columns]
                grad_value[heads_, first:last].baddbmm_(weight.transpose(1, 2), upstream)
                torch.bmm(upstream, values[heads_, first:last].transpose(1, 2), out=score)
                score.sub_(sums).mul_(weight)
                part.baddbmm_(score, keys[heads_, first:last], alpha=self.scale)
                grad_key[heads_, first:last].baddbmm_(
                    score.transpose(1, 2), block.queries, alpha=self.scale
                )
            grad_query[heads_, :, times] = part.view(block.n1 - block.n0, group, -1, width)
            if logits is not None:
                pull = (weights[..., -1:] * sums).view(block.n1 - block.n0, group, -1)
                grad_logit[heads_] -= pull.sum(2)
        return (
            grad_query.view(query.shape),
            grad_key.view(key.shape),
            grad_value.view(value.shape),
            None if logits is None else grad_logit.view(rows, heads).sum(0),
        )

    def _blocks(self, query: Tensor, key: Tensor, logits: Tensor | None) -> Iterator[_Block]:
        rows, heads, length, width = query.shape
        group = heads // key.shape[1]
        keys = key.reshape(-1, length, width)
        queries = query.reshape(keys.shape[0], group, length, width)
        reach = length if self.window is None else min(length, self.window)
        budget = tile_elements(query.device)
        size = min(length, max(32, min(128, budget // (group * reach))))
        for t0 in range(0, length, size):
            t1 = min(length, t0 + size)
            lo = max(0, t0 - reach + 1)
            sinks = min(self.num_sink_tokens, lo) if self.window is not None else 0
            span = t1 - lo
            spans = ((0, sinks, slice(0, sinks)), (lo, t1, slice(sinks, sinks + span)))
            columns = sinks + span + (logits is not None)
            hidden = self._hidden(t0, t1, lo, query.device)
            step = max(1, budget // (group * (t1 - t0) * columns))
            for n0 in range(0, keys.shape[0], step):
                n1 = min(keys.shape[0], n0 + step)
                part = queries[n0:n1, :, t0:t1].flatten(1, 2)
                scores = query.new_empty(n1 - n0, part.shape[1], columns)
                for first, last, where in spans:
                    torch.baddbmm(
                        scores[..., where],
                        part,
                        keys[n0:n1, first:last].transpose(1, 2),
                        beta=0,
                        alpha=self.scale,
                        out=scores[..., where],
                    )
                by_head = scores.view(n1 - n0, group, t1 - t0, columns)
                by_head[..., sinks : sinks + span].masked_fill_(hidden, -math.inf)
                if logits is not None:
                    by_head[..., -1] = _per_key_head(logits, rows, group)[n0:n1]
                used = spans if sinks else spans[1:]
                yield _Block(n0, n1, t0, t1, scores, part, used)

    def _hidden(self, t0: int, t1: int, lo: int, device: torch.device) -> Tensor:
        """bool [C, L]: which of the keys ``lo .. t1 - 1`` a query of the block does not see."""
        at = torch.arange(t0, t1, device=device)[:, None]
        to = torch.arange(lo, t1, device=device)[None, :]
        hidden = to > at
        if self.window is not None:
            hidden |= (at - to >= self.window) & (to >= self.num_sink_tokens)
        return hidden


def _per_key_head(logits: Tensor, rows: int, group: int) -> Tensor:
    """[N, G, 1] from [Hq]."""
    return logits.view(1, -1, group).expand(rows, -1, -1).reshape(-1, group, 1)
