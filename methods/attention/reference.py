"""Attention that writes the T x T matrix out: the definition, and the ``eager-attention`` baseline.

It does what the eager path of transformers' gpt-oss does (scores, mask, the sink logit as one more
column, softmax, drop the column), with grouped heads multiplied in place instead of repeated, so that
the baseline is not slowed down on purpose. Time and memory are quadratic in T.

Shape legend: B rows, Hq query heads, Hkv key heads, G = Hq / Hkv, T positions, D head dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from methods.attention.layout import Layout, visible


def reference_attention(
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
    """Softmax attention under an explicit mask; arguments as checked by ``sink_attention``.

    Half-precision inputs are computed in float32. Autograd gives the gradients.

    Returns:
        [B, Hq, T, D], in the dtype of ``query``.
    """
    rows, heads, length, width = query.shape
    key_heads = key.shape[1]
    group = heads // key_heads
    dtype = torch.promote_types(query.dtype, torch.float32)

    mask = visible(length, window, num_sink_tokens, layout).to(query.device)
    blind = layout.padding_on(query.device)
    if blind is not None:
        # A row of -inf has no softmax. Padding looks at itself instead, and its output is zeroed
        # below, which also gives it zero gradients.
        mask = mask | (torch.eye(length, dtype=torch.bool, device=query.device) & blind[:, 0])
    if mask.dim() == 3:
        mask = mask[:, None, None]

    grouped = (query.to(dtype) * scale).reshape(rows, key_heads, group, length, width)
    scores = torch.matmul(grouped, key.to(dtype).unsqueeze(2).transpose(-1, -2))
    scores = scores.masked_fill(~mask, -math.inf)
    if sink_logits is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        column = sink_logits.to(dtype).view(1, key_heads, group, 1, 1)
        column = column.expand(rows, key_heads, group, length, 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    out = torch.matmul(weights, value.to(dtype).unsqueeze(2)).reshape(query.shape)
    if blind is not None:
        out = out.masked_fill(blind, 0.0)
    return out.to(query.dtype)
