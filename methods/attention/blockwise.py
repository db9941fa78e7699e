"""Exact attention in memory linear in T, forward and backward, from plain matrix products.

Queries are cut into blocks; each block meets only the keys that it can see, so nothing of size T x T
exists. There are two ways to run the blocks (``choose_path``):

* ``tiled`` for small windows: many blocks are folded into the batch dimension of one product
  (``methods/attention/tiled.py``).
* ``looped`` for full causal attention and wide windows: one block at a time, all heads in one product
  (``methods/attention/looped.py``).

Both recompute the softmax in the backward pass (Dao et al. 2022, arXiv 2205.14135, sec. 3.1), so that
only the output is kept. The sink logit is one more column of the softmax that has no value (gpt-oss):
it enters the maximum and the denominator like any score, hence a logit of +-100 stays finite.

Only public operators are used. The fused CPU kernel behind ``scaled_dot_product_attention`` was
measured too: with the window's blocks folded into its batch it is 1.2 to 1.6 times slower than the
products here, because it needs a mask in memory for every block, and its log-sum-exp is reachable
through private operators only.

Shape legend: B rows, Hq query heads, Hkv key heads, G = Hq / Hkv, T positions, D head dimension.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from methods.attention import blocks, looped, packing, tiled
from methods.attention.layout import Layout

Path = Literal["tiled", "looped"]


def choose_path(length: int, window: int | None, num_sink_tokens: int) -> Path:
    """Which of the two ways runs for T = ``length``; a window of T or more is full causal."""
    if window is None or window >= length:
        return "looped"
    return "tiled" if blocks.fits(length, window, num_sink_tokens) else "looped"


class _Kernel(torch.autograd.Function):
    """Connects a plan's two passes to autograd. Gradients of gradients are not defined."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink_logits: Tensor | None,
        plan: tiled.TiledPlan | looped.LoopedPlan,
    ) -> Tensor:
        out = plan.forward(query, key, value, sink_logits)
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, sink_logits, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # once_differentiable would let a gradient penalty pass with a silent zero.
            raise RuntimeError(
                "the blockwise backend has no gradient of its gradient (create_graph=True); "
                "use backend='reference' for second derivatives."
            )
        return (*ctx.plan.backward(*ctx.saved_tensors, grad_out), None)


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink_logits: Tensor | None,
    plan: tiled.TiledPlan | looped.LoopedPlan,
) -> Tensor:
    """``_Kernel.apply``, typed."""
    return _Kernel.apply(query, key, value, sink_logits, plan)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def blockwise_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int | None,
    num_sink_tokens: int,
    sink_logits: Tensor | None,
    scale: float,
    layout: Layout,
) -> Tensor:
    """Attention in linear extra memory on any device; arguments as checked by ``sink_attention``.

    Half-precision inputs are computed in float32. Deterministic for a given number of threads.

    Returns:
        [B, Hq, T, D], in the dtype of ``query``.
    """
    given = query.dtype
    dtype = torch.promote_types(given, torch.float32)
    if given != dtype:
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if sink_logits is not None and sink_logits.dtype != dtype:
        sink_logits = sink_logits.to(dtype)
    length = query.shape[2]
    if choose_path(length, window, num_sink_tokens) == "tiled":
        assert window is not None
        out = _run_tiled(query, key, value, sink_logits, window, num_sink_tokens, scale, layout)
    else:
        out = _run_looped(query, key, value, sink_logits, window, num_sink_tokens, scale, layout)
    return out if given == dtype else out.to(given)


def _run_tiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink_logits: Tensor | None,
    window: int,
    num_sink_tokens: int,
    scale: float,
    layout: Layout,
) -> Tensor:
    rows, heads, length, width = query.shape
    make = blocks.PlanKey(
        window=window,
        num_sink_tokens=num_sink_tokens,
        group=heads // key.shape[1],
        has_logit=sink_logits is not None,
        dtype=query.dtype,
        device=query.device,
    )
    if layout.kind != "packed":
        # Padding lies behind every real query, so causality alone hides its keys.
        plan = replace(packing.plan_for_rows(make, rows * key.shape[1], length), scale=scale)
        padding = layout.padding_on(query.device)
        out = _run(query, key, value, sink_logits, plan)
        return out if padding is None else out.masked_fill(padding, 0.0)

    packed = packing.packing_for(make, layout, key.shape[1])
    flat = [x.transpose(0, 1).reshape(1, -1, rows * length, width) for x in (query, key, value)]
    q, k, v = (x.index_select(2, packed.slot_source) for x in flat)
    out = _run(q, k, v, sink_logits, replace(packed.plan, scale=scale))
    out = out.index_select(2, packed.token_slot).view(heads, rows, length, width).transpose(0, 1)
    padding = layout.padding_on(query.device)
    return out if padding is None else out.masked_fill(padding, 0.0)


def _run_looped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink_logits: Tensor | None,
    window: int | None,
    num_sink_tokens: int,
    scale: float,
    layout: Layout,
) -> Tensor:
    plan = looped.LoopedPlan(window, num_sink_tokens, scale)
    if layout.kind != "packed":
        out = _run(query, key, value, sink_logits, plan)
        padding = layout.padding_on(query.device)
        return out if padding is None else out.masked_fill(padding, 0.0)

    # Documents of any length, one after the other; what lies between them is padding.
    pieces: list[list[Tensor]] = [[] for _ in range(layout.rows)]
    filled = [0] * layout.rows
    for row, start, stop in layout.documents():
        if start > filled[row]:
            pieces[row].append(
                query.new_zeros(1, query.shape[1], start - filled[row], query.shape[3])
            )
        q, k, v = (x[row : row + 1, :, start:stop] for x in (query, key, value))
        pieces[row].append(_run(q, k, v, sink_logits, plan))
        filled[row] = stop
    for row, end in enumerate(filled):
        if end < layout.length:
            pieces[row].append(
                query.new_zeros(1, query.shape[1], layout.length - end, query.shape[3])
            )
    return torch.cat([torch.cat(row_pieces, 2) for row_pieces in pieces], 0)
