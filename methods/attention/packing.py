"""Plans for ``tiled.py``: for rows that start at 0, and for documents anywhere in a row.

Shape legend: B rows, Hkv key heads, G query heads a key head, T positions, C queries a block, K
blocks a row, S sink tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from methods.attention.blocks import PlanKey, back_blocks, block_length, mask_table
from methods.attention.layout import Layout, outlives_modes
from methods.attention.tiled import TiledPlan


@lru_cache(maxsize=256)
@outlives_modes
def plan_for_rows(key: PlanKey, sequences: int, length: int) -> TiledPlan:
    """The plan for ``sequences`` = B * Hkv rows of T = ``length`` that start at 0."""
    block = block_length(key.window, length)
    sinks = max(0, min(key.num_sink_tokens, length - key.window))
    blocks = -(-length // block)
    masks = mask_table(key.window, sinks, block, key.has_logit, key.dtype, key.device)
    kinds = torch.arange(blocks).clamp_(max=masks.shape[0] - 1)
    mask_of = kinds.repeat(sequences).repeat_interleave(key.group).to(key.device)
    back = back_blocks(block, key.window)
    return TiledPlan(key, block, back, sinks, blocks, masks, mask_of, None)


@dataclass(frozen=True, eq=False)
class Packing:
    """Every document moved to a block of its own.

    Args:
        plan: For one row of all blocks.
        slot_source: int64 [K * C], which of the B * T tokens fills a slot (any token in padding).
        token_slot: int64 [B * T], the slot of each token (0 for padding tokens).
    """

    plan: TiledPlan
    slot_source: Tensor
    token_slot: Tensor


def packing_for(key: PlanKey, layout: Layout, key_heads: int) -> Packing:
    """The packing of a layout, kept in the layout's scratch."""
    name = ("packing", key, key_heads)
    return layout.kept(name, lambda: _make_packing(key, layout, key_heads))


def _make_packing(key: PlanKey, layout: Layout, key_heads: int) -> Packing:
    sizes = layout.document_stop - layout.document_start
    if not len(sizes):
        sizes = torch.ones(1, dtype=torch.int64)
    longest, mean = int(sizes.max()), int(sizes.float().mean().ceil())
    block = block_length(key.window, mean)
    sinks = max(0, min(key.num_sink_tokens, longest - key.window))
    in_blocks = (sizes + block - 1) // block
    first_block = in_blocks.cumsum(0) - in_blocks
    document = torch.arange(len(sizes)).repeat_interleave(in_blocks)
    index = torch.arange(len(document)) - first_block[document]

    slots = len(document) * block
    source = torch.zeros(slots, dtype=torch.int64)
    token_slot = torch.zeros(layout.rows * layout.length, dtype=torch.int64)
    if len(layout.document_row):
        of_token = torch.arange(len(sizes)).repeat_interleave(sizes)
        offset = torch.arange(len(of_token)) - (sizes.cumsum(0) - sizes)[of_token]
        base = layout.document_row * layout.length + layout.document_start
        token, slot = base[of_token] + offset, first_block[of_token] * block + offset
        source[slot] = token
        token_slot[token] = slot

    sink_slots = (first_block[document] * block)[:, None] + torch.arange(sinks)
    masks = mask_table(key.window, sinks, block, key.has_logit, key.dtype, key.device)
    kinds = index.clamp(max=masks.shape[0] - 1)
    plan = TiledPlan(
        key=key,
        block=block,
        back=back_blocks(block, key.window),
        sinks=sinks,
        blocks=len(document),
        masks=masks,
        mask_of=kinds.repeat(key_heads).repeat_interleave(key.group).to(key.device),
        # A document shorter than S has no such slot; the mask hides whatever is read instead.
        sink_slots=sink_slots.clamp_(max=slots - 1).flatten().to(key.device) if sinks else None,
    )
    return Packing(plan, source.to(key.device), token_slot.to(key.device))
