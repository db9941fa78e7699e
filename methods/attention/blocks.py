"""How queries are cut into blocks, and what a block may see: the geometry of ``tiled.py``.

Shape legend: T positions, D head dimension, W window, S sink tokens, C queries a block, m earlier
blocks that a block reaches, L = S + (m + 1) * C key columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from methods.attention.layout import outlives_modes

_MAX_TABLE_ELEMENTS = 1 << 20
_MAX_BLOCK = 128


def tile_elements(device: torch.device) -> int:
    """How many scores to hold at once: a megabyte of float32 on a CPU, enough work for a GPU."""
    return 1 << 18 if device.type == "cpu" else 1 << 25


def rowsum(grad_out: Tensor, out: Tensor) -> Tensor:
    """sum(grad_out * out) over D, [B, Hq, T, 1], a head at a time: the product is never whole."""
    pairs = zip(grad_out.unbind(1), out.unbind(1), strict=True)
    return torch.stack([(g * o).sum(-1, keepdim=True) for g, o in pairs], 1)


def block_length(window: int, longest: int) -> int:
    """C for a window and the longest document: about W / 2, a multiple of 8."""
    return max(8, min(_round8((window + 1) // 2), _MAX_BLOCK, _round8(longest)))


def _round8(count: int) -> int:
    return -(-count // 8) * 8


def fits(length: int, window: int, num_sink_tokens: int) -> bool:
    """Whether the table of masks stays small (it grows with W squared)."""
    block = block_length(window, length)
    sinks = max(0, min(num_sink_tokens, length - window))
    kinds = mask_kinds(block, window, sinks)
    return kinds * block * (sinks + window + block) <= _MAX_TABLE_ELEMENTS


def back_blocks(block: int, window: int) -> int:
    """m: how many earlier blocks a block reaches."""
    return -(-(window - 1) // block)


def mask_kinds(block: int, window: int, sinks: int) -> int:
    """Number of different masks: the first block from which on all are alike, plus one."""
    return -(-(window + sinks - 1) // block) + 1


@dataclass(frozen=True)
class PlanKey:
    """What a plan's tables depend on besides the lengths.

    Not the scale: it may take any number of values, and plans are kept by key.
    """

    window: int
    num_sink_tokens: int
    group: int
    has_logit: bool
    dtype: torch.dtype
    device: torch.device


@lru_cache(maxsize=64)
@outlives_modes
def mask_table(
    window: int, sinks: int, block: int, has_logit: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """[kinds, C, (1 +) L]: 0 where seen, -inf where not, one mask for each kind of block.

    The first column is the sink logit's, if there is one, then the sink keys, then the span.
    """
    back = back_blocks(block, window)
    kind = torch.arange(mask_kinds(block, window, sinks))[:, None, None]
    query = kind * block + torch.arange(block)[:, None]
    key = (kind - back) * block + torch.arange((back + 1) * block)
    span = (key >= 0) & (key <= query) & (query - key < window)
    sink = query - torch.arange(sinks) >= window
    logit = torch.ones(*sink.shape[:2], int(has_logit), dtype=torch.bool)
    seen = torch.cat([logit, sink, span], -1)
    return torch.where(seen, 0.0, -math.inf).to(device, dtype)
