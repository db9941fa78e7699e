"""Which positions of an episode a cache holds, where, and which of them a query sees.

Plain index arithmetic, the same for all layers and heads. Slots are counted from 0 here.

Shape legend: B rows, N packed new tokens, L longest chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ring:
    """S fixed slots for the sink tokens and a ring of W, or a slot for every position.

    Args:
        window: W, the query included.
        num_sink_tokens: S.
        full: Keep every position. A query sees no more than otherwise.
    """

    window: int
    num_sink_tokens: int
    full: bool

    def entries(self, length: int) -> int:
        """Positions held for a row that has seen ``length`` of them."""
        return length if self.full else min(length, self.window + self.num_sink_tokens)

    def slot(self, position: np.ndarray) -> np.ndarray:
        """Slot of each position."""
        if self.full:
            return position
        sinks = self.num_sink_tokens
        return np.where(position < sinks, position, sinks + (position - sinks) % self.window)

    def kept(self, position: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Which positions [N] are still held when their row has seen ``end`` [N] of them."""
        if self.full:
            return np.ones(len(position), dtype=np.bool_)
        return (position < self.num_sink_tokens) | (position >= end - self.window)

    def held(self, start: np.ndarray, slots: int) -> np.ndarray:
        """int64 [B, slots]: position in each slot after ``start`` [B] tokens, -1 where empty."""
        slot = np.arange(slots)[None, :]
        newest = start[:, None] - 1
        if self.full:
            return np.where(slot <= newest, slot, -1)
        window = self.window  # the newest position that maps to the slot:
        turned = slot + (newest - slot) // window * window
        return np.where(slot > newest, -1, np.where(slot < self.num_sink_tokens, slot, turned))

    def sees(self, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Whether a query position sees a key position (DESIGN: window and sink tokens)."""
        near = (key > query - self.window) | (key < self.num_sink_tokens)
        return (key >= 0) & (key <= query) & near

    def last_visible(self, end: np.ndarray) -> np.ndarray | None:
        """bool [B, slots in use]: what each row's newest token sees, None when it is everything.

        In the ring that is every slot that has been filled: what it may not see is overwritten.
        """
        used = self.entries(int(end.max()))
        if self.full:
            return self.sees(end[:, None] - 1, np.arange(used)[None, :])
        if self.entries(int(end.min())) == used:
            return None
        return np.arange(used)[None, :] < end[:, None]

    def chunk_visible(self, start: np.ndarray, longest: int, slots: int) -> np.ndarray:
        """bool [B, L, slots + L]: what each new token sees of the slots and of its own chunk."""
        query = start[:, None] + np.arange(longest)[None, :]
        key = np.concatenate([self.held(start, slots), query], axis=1)
        return self.sees(query[:, :, None], key[:, None, :])
