"""Attention through torch's FlexAttention, compiled, on CUDA.

The compiled kernel visits only the 128 x 128 blocks of a block mask. It has no sink logit, so the
output is rescaled: with lse the log-sum-exp of a row's scores, adding a logit s of zero value to the
softmax multiplies the row by exp(lse) / (exp(lse) + exp(s)) = sigmoid(lse - s). The kernel's backward
pass takes a gradient for lse too, so the gradients stay exact.

Run without the compiler, the same call writes out the T x T matrix without saying so
(pytorch/pytorch#152528). Here it raises: see ``_kernel``.

Shape legend: B rows, Hq query heads, Hkv key heads, T positions, D head dimension, R = B or 1 mask
rows, K = ceil(T / 128) blocks.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from methods.attention.layout import Layout

BLOCK = 128
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Kernel = Callable[..., tuple[Tensor, Any]]


def require_flex(device: torch.device, dtype: torch.dtype) -> None:
    """Raise unless the compiled kernel can run there.

    Raises:
        ValueError: Not CUDA, a dtype that the kernel lacks, or no compiler; says which.
    """
    instead = "Use backend='blockwise' (exact, linear memory, any device)."
    if device.type != "cuda":
        raise ValueError(
            f"backend 'flex' runs on CUDA only, and the query is on {device}: on other devices "
            f"FlexAttention has no backward pass. {instead}"
        )
    if dtype not in _DTYPES:
        raise ValueError(
            f"backend 'flex' computes in float32, bfloat16 or float16, not {dtype}. {instead}"
        )
    if importlib.util.find_spec("triton") is None:
        raise ValueError(
            "backend 'flex' must be compiled (uncompiled it takes memory quadratic in T), and the "
            f"package triton is not installed: pip install triton. {instead}"
        )


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float, grouped: bool
) -> tuple[Tensor, Any]:
    if not torch.compiler.is_compiling():
        raise RuntimeError(
            "backend 'flex' was about to run uncompiled, which takes memory quadratic in T. "
            "torch.compile is switched off (TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE or "
            "torch.compiler.set_stance): switch it on, or use backend='blockwise'."
        )
    return flex_attention(
        query,
        key,
        value,
        block_mask=mask,
        scale=scale,
        enable_gqa=grouped,
        return_aux=AuxRequest(lse=True),
    )


@lru_cache(maxsize=1)
def _compiled() -> Kernel:
    # fullgraph: a graph break, or too many recompilations, is an error instead of a slow path.
    return torch.compile(_kernel, fullgraph=True)


def flex_sink_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int | None,
    num_sink_tokens: int,
    sink_logits: Tensor | None,
    scale: float,
    layout: Layout,
    kernel: Kernel | None = None,
) -> Tensor:
    """Attention through the compiled kernel; arguments as checked by ``sink_attention``.

    Args:
        query: [B, Hq, T, D].
        key: [B, Hkv, T, D].
        value: [B, Hkv, T, D].
        window: W or None.
        num_sink_tokens: S.
        sink_logits: [Hq] or None.
        scale: Factor on the scores.
        layout: The documents.
        kernel: Stands in for the compiled kernel, so that the rescaling and the mask can be tested
            where there is no CUDA.

    Returns:
        [B, Hq, T, D], in the dtype of ``query``.

    Raises:
        RuntimeError: If the kernel would run uncompiled.
    """
    mask = block_mask(layout, window, num_sink_tokens, query.device)
    run = _compiled() if kernel is None else kernel
    out, aux = run(query, key, value, mask, scale, query.shape[1] != key.shape[1])
    if sink_logits is not None:
        share = torch.sigmoid(aux.lse - sink_logits.to(aux.lse.dtype).view(1, -1, 1))
        out = (out * share.unsqueeze(-1)).to(query.dtype)
    padding = layout.padding_on(query.device)
    return out if padding is None else out.masked_fill(padding, 0.0)


def block_mask(
    layout: Layout, window: int | None, num_sink_tokens: int, device: torch.device
) -> BlockMask:
    """The block mask of a layout, worked out from block borders: T x T is never written out.

    ``create_block_mask`` evaluates the mask at every pair of positions. Kept in the layout's scratch.
    """
    name = ("flex", window, num_sink_tokens, device)
    return layout.kept(name, lambda: _make_block_mask(layout, window, num_sink_tokens, device))


def _make_block_mask(
    layout: Layout, window: int | None, sinks: int, device: torch.device
) -> BlockMask:
    length = layout.length
    reach = length if window is None else window
    plain = layout.kind == "plain"
    starts = torch.zeros(1, length, dtype=torch.int64) if plain else layout.starts()
    some, full = _block_maps(starts, reach, sinks)
    positions = starts.to(device)

    def sees(b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        start = positions[b, i]
        return (j <= i) & (j >= start) & ((i - j < reach) | (j - start < sinks))

    def sees_plain(_b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i - j < reach) | (j < sinks))

    return BlockMask.from_kv_blocks(
        *_indices(some & ~full, device),
        *_indices(full, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees_plain if plain else sees,
        seq_lengths=(length, length),
    )


def _block_maps(starts: Tensor, reach: int, sinks: int) -> tuple[Tensor, Tensor]:
    """bool [R, K, K], twice: blocks with a visible pair, and blocks with visible pairs only.

    Args:
        starts: int64 [R, T], where each position's document starts; T at padding.
        reach: W, or T for full causal attention.
        sinks: S.
    """
    length = starts.shape[1]
    count = -(-length // BLOCK)
    padded = torch.nn.functional.pad(starts, (0, count * BLOCK - length), value=length)
    by_block = padded.view(-1, count, BLOCK)
    earliest, latest = by_block.amin(2)[:, :, None], by_block.amax(2)[:, :, None]
    # Slots behind T, in the last block, do not count as a different document.
    tail = starts[:, (count - 1) * BLOCK :]
    latest[:, -1, 0] = tail.amax(1)

    q0 = torch.arange(count)[:, None] * BLOCK
    k0 = torch.arange(count)[None, :] * BLOCK
    q1, k1 = q0 + BLOCK - 1, k0 + BLOCK - 1
    # Only a document that began before the query block can have sink tokens outside that block.
    at_sinks = (k1 >= earliest) & (k0 < earliest + sinks)
    some = (k0 <= q0) & (k1 >= earliest) & ((q0 - k1 < reach) | at_sinks | (k0 == q0))
    inside = (k1 <= q0) & (latest == earliest) & (k0 >= latest)
    full = inside & ((q1 - k0 < reach) | (k1 - latest < sinks))
    return some, full


def _indices(chosen: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Counts [R, 1, K] and indices [R, 1, K, K] (chosen blocks first, in order) of a block map."""
    order = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True)
    counts = chosen.sum(-1)
    return tuple(x.to(device, torch.int32)[:, None].contiguous() for x in (counts, order))  # type: ignore[return-value]
