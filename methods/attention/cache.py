"""Key-value cache of window attention with sink tokens: S + W entries however long the episode.

Query position i sees the sink tokens 0..S-1 and the window max(0, i-W+1)..i, itself included. Once
a position has left the window of the newest token no later query can see it, so a ring of W slots
beside S fixed ones is all that has to be kept (StreamingLLM, arXiv 2309.17453; gpt-oss adds one
logit a head to the softmax denominator, arXiv 2508.10925). Keys are cached after the rotary
embedding at their absolute positions, hence an entry never changes while it is held.

Tokens are handed over *packed*: the new tokens of all rows one after another, [N], without padding.
Every forward pass has three parts: ``begin`` works out positions, visibility and write indices once
for all layers, ``attend`` or ``attend_last`` runs once a layer, ``commit`` ends it.

Shape legend: B rows (episodes), N packed new tokens, R rows with new tokens, L longest chunk,
C capacity in positions, Hq query heads, Hkv key heads, G = Hq / Hkv, D head dimension, P pointer
key dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from methods.attention.ring import Ring

_HIDDEN = (
    -1e30
)  # finite: a row without any visible key then gives 0 (its slots hold zeros), not NaN


@dataclass(frozen=True)
class _Chunk:
    """What one forward pass needs to know, the same for all layers.

    Attributes:
        lengths: int64 [B] new tokens a row.
        active: rows with new tokens [R], or None when every row has some.
        packed: index of each packed token in the padded [B * L] grid, or None when nothing is padded.
        last: packed index of each active row's last token [R], or None when L is 1.
        kept: packed tokens that are still visible after this chunk, or None for all of them.
        slots: [kept] row-and-slot index b * (C + 1) + slot of those tokens.
        kv_slots: [kept * 2 * Hkv] where their keys and values go in a layer's flattened store.
        used: slots to read after the write, the null slot included.
        last_mask: float [B, 1, 1, used] to add to the scores of each row's last query, or None.
        chunk_mask: float [B, 1, 1, L, used_before + L] for all queries, or None when L is 1.
        used_before: slots to read before the write, the null slot included.
    """

    lengths: np.ndarray
    active: Tensor | None
    packed: Tensor | None
    last: Tensor | None
    kept: Tensor | None
    slots: Tensor
    kv_slots: Tensor
    used: int
    last_mask: Tensor | None
    chunk_mask: Tensor | None
    used_before: int


class SinkCache:
    """Keys and values of B episodes of unequal length; the chunks may be ragged.

    Slot 0 of every row is a null entry of zeros that stands for the sink logit; positions follow.

    Args:
        num_layers: Layers that attend.
        batch_size: B.
        num_kv_heads: Hkv.
        head_dim: D.
        window: W >= 1, the query included.
        num_sink_tokens: S >= 0.
        pointer_dim: P, size of the pointer head's key, 0 for a model without one.
        mode: "rolling" holds S + W positions; "full" keeps every position, though no query sees
            more than in "rolling" (what an implementation without eviction costs).
        scale: Factor of the scores, 1/sqrt(D) by default.
        dtype: Of keys and values.

    Raises:
        ValueError: If window < 1, num_sink_tokens < 0 or the mode is unknown.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        batch_size: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
        num_sink_tokens: int,
        pointer_dim: int = 0,
        mode: Literal["rolling", "full"] = "rolling",
        scale: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if window < 1 or num_sink_tokens < 0 or mode not in {"rolling", "full"}:
            raise ValueError(
                f"cannot build a cache with window={window!r}, num_sink_tokens={num_sink_tokens!r}, "
                f"mode={mode!r}: window must be >= 1, num_sink_tokens >= 0 and mode 'rolling' or "
                "'full'"
            )
        self._ring = Ring(window, num_sink_tokens, full=mode == "full")
        capacity = window + num_sink_tokens
        self._kv = torch.zeros(
            num_layers, 2, batch_size, num_kv_heads, capacity + 1, head_dim, dtype=dtype
        )
        self._pointer_keys = torch.zeros(batch_size, capacity + 1, pointer_dim, dtype=dtype)
        self._pointer_tokens = torch.zeros(batch_size, capacity + 1, dtype=torch.int64)
        self._positions = np.zeros(batch_size, dtype=np.int64)
        self._scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
        self._chunk: _Chunk | None = None
        self._index_storage()

    @property
    def batch_size(self) -> int:
        """Rows held now."""
        return int(self._kv.shape[2])

    @property
    def positions(self) -> np.ndarray:
        """int64 [B]: positions each row has seen, which is the position of its next token."""
        return self._positions.copy()

    @property
    def capacity(self) -> int:
        """C: positions a row has room for, S + W in "rolling" mode."""
        return int(self._kv.shape[4]) - 1

    @property
    def entry_bytes(self) -> int:
        """Bytes that one position of one row takes: keys and values of all layers, pointer key."""
        layers, both, _, heads, _, dim = self._kv.shape
        numbers = layers * both * heads * dim + self._pointer_keys.shape[2]
        return int(numbers) * self._kv.element_size()

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values (the null entry, one a row, aside)."""
        return self.batch_size * self.capacity * self.entry_bytes

    def entries(self, length: int) -> int:
        """Positions held for a row that has seen ``length`` of them."""
        return self._ring.entries(length)

    def begin(self, lengths: np.ndarray) -> Tensor:
        """Start a forward pass over ``lengths`` [B] new tokens a row (0 leaves a row alone).

        Returns:
            int64 [N]: absolute positions of the packed new tokens.

        Raises:
            ValueError: If ``lengths`` is not [B], has a negative entry or is all zero.
            RuntimeError: If the pass before was not committed.
        """
        if self._chunk is not None:
            raise RuntimeError("begin() before commit(): end the forward pass before first")
        if lengths.shape != self._positions.shape or lengths.min() < 0 or lengths.max() < 1:
            raise ValueError(
                f"lengths must be {self._positions.shape} non-negative integers, at least one of "
                f"them positive; got {lengths!r}"
            )
        start, end = self._positions, self._positions + lengths
        self._grow(int(end.max()))
        longest, active = int(lengths.max()), np.flatnonzero(lengths)
        rows, position, packed, last, kept = active, start[active], None, None, None
        if longest > 1:
            count = lengths[active]
            rows, stops = np.repeat(active, count), np.cumsum(count)
            offset = np.arange(len(rows)) - np.repeat(stops - count, count)
            position, last = start[rows] + offset, torch.from_numpy(stops - 1)
            if len(rows) < len(lengths) * longest:
                packed = torch.from_numpy(rows * longest + offset)
            held = np.flatnonzero(self._ring.kept(position, end[rows]))
            kept = None if len(held) == len(rows) else torch.from_numpy(held)
        elif len(rows) < len(lengths):
            packed = torch.from_numpy(rows)
        stored, where = (rows, position) if kept is None else (rows[held], position[held])
        stride, slot = self.capacity + 1, 1 + self._ring.slot(where)
        kv_slots = (stored * (self._kv.shape[3] * stride) + slot)[:, None, None]
        before, chunk_visible = self.entries(int(start.max())), None
        if longest > 1:
            chunk_visible = self._ring.chunk_visible(start, longest, before)
        self._chunk = _Chunk(
            lengths=lengths,
            active=None if len(active) == len(lengths) else torch.from_numpy(active),
            packed=packed,
            last=last,
            kept=kept,
            slots=torch.from_numpy(stored * stride + slot),
            kv_slots=torch.from_numpy((kv_slots + self._first_row).reshape(-1)),
            used=1 + self.entries(int(end.max())),
            last_mask=self._additive(self._ring.last_visible(end)),
            chunk_mask=self._additive(chunk_visible),
            used_before=1 + before,
        )
        return torch.from_numpy(position)

    @property
    def last(self) -> Tensor | None:
        """int64 [R]: packed index of the last new token of each row that has some.

        None when no row has more than one.
        """
        return self._current().last

    def attend(
        self, layer: int, query: Tensor, key_value: Tensor, sink_logits: Tensor | None
    ) -> Tensor:
        """Attention of every new token, and their keys and values kept for later.

        Args:
            layer: Which layer.
            query: [N, Hq, D], rotated.
            key_value: [N, 2, Hkv, D], the keys rotated.
            sink_logits: [Hq] or None.

        Returns:
            [N, Hq * D].
        """
        chunk = self._current()
        if chunk.chunk_mask is None:  # a token a row sees what is held after the write
            return self.attend_last(layer, query, key_value, sink_logits)
        batch, length = len(chunk.lengths), int(chunk.chunk_mask.shape[3])
        heads, dim = self._kv.shape[3], self._kv.shape[5]
        group = query.shape[1] // heads
        queries = self._padded(query, chunk).view(batch, length, heads, group, dim)
        queries = queries.permute(0, 2, 3, 1, 4).reshape(batch * heads, group * length, dim)
        fresh = self._padded(key_value, chunk).view(batch, length, 2, heads, dim)
        held = self._kv[layer, :, :, :, : chunk.used_before]
        keys = torch.cat([held[0], fresh[:, :, 0].transpose(1, 2)], dim=2).flatten(0, 1)
        values = torch.cat([held[1], fresh[:, :, 1].transpose(1, 2)], dim=2).flatten(0, 1)
        scores = self._scores(queries, keys.transpose(1, 2))
        by_head = scores.view(batch, heads, group, length, -1)
        by_head.add_(chunk.chunk_mask)
        if sink_logits is not None:
            by_head[..., 0] = sink_logits.view(heads, group, 1)
        out = torch.bmm(scores.softmax(-1), values).view(batch, heads, group, length, dim)
        out = out.permute(0, 3, 1, 2, 4).reshape(batch * length, heads * group * dim)
        self._write(layer, key_value, chunk)
        return out if chunk.packed is None else out.index_select(0, chunk.packed)

    def attend_last(
        self, layer: int, query: Tensor, key_value: Tensor, sink_logits: Tensor | None
    ) -> Tensor:
        """As ``attend``, for the last new token of each row alone.

        After the write a row holds exactly what its last token sees, so that no chunk is needed.

        Args:
            layer: Which layer.
            query: [R, Hq, D], rotated: one query for each row with new tokens.
            key_value: [N, 2, Hkv, D], the keys rotated.
            sink_logits: [Hq] or None.

        Returns:
            [R, Hq * D].
        """
        chunk = self._current()
        self._write(layer, key_value, chunk)
        _, _, batch, heads, _, dim = self._kv.shape
        group = query.shape[1] // heads
        queries = self._all_rows(query.reshape(-1, heads * group * dim), chunk)
        queries = queries.reshape(batch * heads, group, dim)
        keys, values = self._read(layer, chunk.used)
        scores = self._scores(queries, keys)
        by_head = scores.view(batch, heads, group, chunk.used)
        if chunk.last_mask is not None:
            by_head.add_(chunk.last_mask)
        if sink_logits is None:
            by_head[..., 0] = _HIDDEN
        else:
            by_head[..., 0] = sink_logits.view(heads, group)
        out = torch.bmm(scores.softmax(-1), values).view(batch, heads * group * dim)
        return out if chunk.active is None else out.index_select(0, chunk.active)

    def point(self, query: Tensor, keys: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the pointer head over what the last new token of each row sees.

        Args:
            query: [R, P], scaled.
            keys: [N, P] pointer keys of the new tokens.
            tokens: int64 [N] their ids.

        Returns:
            scores [R, K] (-1e30 or less where a slot is not visible) and token ids int64 [R, K].
        """
        chunk = self._current()
        width = self._pointer_keys.shape[2]
        if chunk.kept is not None:
            keys, tokens = keys.index_select(0, chunk.kept), tokens.index_select(0, chunk.kept)
        self._pointer_keys.view(-1, width).index_copy_(0, chunk.slots, keys)
        self._pointer_tokens.view(-1).index_copy_(0, chunk.slots, tokens)
        queries = self._all_rows(query, chunk).unsqueeze(1)  # [B, 1, P] @ [B, P, K] is the fast way
        held = self._pointer_keys[:, 1 : chunk.used]
        scores = torch.bmm(queries, held.transpose(1, 2)).squeeze(1)
        ids = self._pointer_tokens[:, 1 : chunk.used]
        if chunk.last_mask is not None:
            scores = scores.add_(chunk.last_mask[:, 0, 0, 1:])
        if chunk.active is None:
            return scores, ids
        return scores.index_select(0, chunk.active), ids.index_select(0, chunk.active)

    def commit(self) -> None:
        """End the forward pass: its tokens are now part of the past."""
        self._positions = self._positions + self._current().lengths
        self._chunk = None

    def select(self, rows: np.ndarray) -> None:
        """Keep only these rows, in this order (episodes that ended are dropped)."""
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        self._kv = self._kv.index_select(2, index)
        self._pointer_keys = self._pointer_keys.index_select(0, index)
        self._pointer_tokens = self._pointer_tokens.index_select(0, index)
        self._positions = self._positions[rows]
        self._index_storage()

    def _additive(self, visible: np.ndarray | None) -> Tensor | None:
        """[B, ..., K] -> float [B, 1, 1, ..., 1 + K]: 0 where visible, -1e30 elsewhere.

        The null slot in front is hidden; a sink logit takes its place.
        """
        if visible is None:
            return None
        mask = np.full((*visible.shape[:-1], visible.shape[-1] + 1), _HIDDEN, dtype=np.float32)
        mask[..., 1:][visible] = 0.0
        return torch.from_numpy(mask).to(self._kv.dtype)[:, None, None]

    # -- storage -------------------------------------------------------------------------------

    def _current(self) -> _Chunk:
        if self._chunk is None:
            raise RuntimeError("call begin() first: no forward pass is under way")
        return self._chunk

    def _index_storage(self) -> None:
        """Views of the storage that every pass uses; to be renewed when the storage is."""
        layers, _, batch, heads, _, dim = self._kv.shape
        self._flat = [self._kv[layer].view(-1, dim) for layer in range(layers)]
        self._reads: tuple[int, list[tuple[Tensor, Tensor]]] = (0, [])
        first = np.arange(2)[:, None] * (batch * heads) + np.arange(heads)
        self._first_row = first[None] * (self.capacity + 1)  # [1, 2, Hkv], of batch row 0

    def _read(self, layer: int, used: int) -> tuple[Tensor, Tensor]:
        """Keys [B * Hkv, D, used] and values [B * Hkv, used, D] of a layer, as views."""
        if self._reads[0] != used:
            held = self._kv[:, :, :, :, :used].flatten(2, 3)
            self._reads = (used, [(kv[0].transpose(1, 2), kv[1]) for kv in held])
        return self._reads[1][layer]

    def _grow(self, length: int) -> None:
        """Room for ``length`` positions in "full" mode, doubling so that copies stay linear."""
        if self.entries(length) <= self.capacity:
            return
        more = max(length, 2 * self.capacity) - self.capacity
        self._kv = torch.nn.functional.pad(self._kv, (0, 0, 0, more))
        self._pointer_keys = torch.nn.functional.pad(self._pointer_keys, (0, 0, 0, more))
        self._pointer_tokens = torch.nn.functional.pad(self._pointer_tokens, (0, more))
        self._index_storage()

    def _write(self, layer: int, key_value: Tensor, chunk: _Chunk) -> None:
        if chunk.kept is not None:
            key_value = key_value.index_select(0, chunk.kept)
        flat = self._flat[layer]
        flat.index_copy_(0, chunk.kv_slots, key_value.reshape(-1, flat.shape[1]))

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        scores = torch.bmm(queries, keys)
        return scores if self._scale == 1.0 else scores.mul_(self._scale)

    @staticmethod
    def _padded(packed: Tensor, chunk: _Chunk) -> Tensor:
        """[N, ...] -> [B * L, ...], zeros where a row has fewer than L new tokens."""
        if chunk.packed is None:
            return packed
        grid = len(chunk.lengths) * int(chunk.lengths.max())
        padded = packed.new_zeros(grid, *packed.shape[1:])
        return padded.index_copy_(0, chunk.packed, packed)

    @staticmethod
    def _all_rows(active: Tensor, chunk: _Chunk) -> Tensor:
        """[R, ...] -> [B, ...], zeros for rows without new tokens."""
        if chunk.active is None:
            return active
        rows = active.new_zeros(len(chunk.lengths), *active.shape[1:])
        return rows.index_copy_(0, chunk.active, active)
