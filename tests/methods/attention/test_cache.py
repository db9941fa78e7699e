"""The rolling cache against full recomputation: before, at and after the first eviction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from methods.attention import sink_attention
from methods.attention.cache import SinkCache

HEADS, KV_HEADS, DIM, POINTER = 4, 2, 8, 6


class Streams:
    """Random queries, keys and values of B episodes, and what full recomputation makes of them."""

    def __init__(self, batch: int, length: int, window: int, sinks: int, logits: bool) -> None:
        g = torch.Generator().manual_seed(5)
        self.window, self.sinks, self.length, self.batch = window, sinks, length, batch
        self.query = torch.randn(batch, length, HEADS, DIM, generator=g)
        self.key_value = torch.randn(batch, length, 2, KV_HEADS, DIM, generator=g)
        self.pointer_key = torch.randn(batch, length, POINTER, generator=g)
        self.pointer_query = torch.randn(batch, length, POINTER, generator=g)
        self.tokens = torch.arange(batch * length).view(batch, length)
        self.logits = torch.randn(HEADS, generator=g) if logits else None
        self.expected = sink_attention(
            self.query.transpose(1, 2),
            self.key_value[:, :, 0].transpose(1, 2),
            self.key_value[:, :, 1].transpose(1, 2),
            window=window,
            num_sink_tokens=sinks,
            sink_logits=self.logits,
            backend="reference",
        ).transpose(1, 2)

    def cache(self, mode: str = "rolling") -> SinkCache:
        return SinkCache(
            num_layers=1,
            batch_size=self.batch,
            num_kv_heads=KV_HEADS,
            head_dim=DIM,
            window=self.window,
            num_sink_tokens=self.sinks,
            pointer_dim=POINTER,
            mode=mode,  # type: ignore[arg-type]
        )

    def visible(self, position: int) -> set[int]:
        near = range(max(0, position - self.window + 1), position + 1)
        return {*range(min(self.sinks, position + 1)), *near}


def packed(x: torch.Tensor, spans: list[tuple[int, int]], rows: list[int]) -> torch.Tensor:
    return torch.cat([x[b, i:j] for b, (i, j) in zip(rows, spans, strict=True)])


def feed(cache: SinkCache, s: Streams, lengths: list[int], rows: list[int]) -> None:
    """One pass over the next ``lengths`` tokens of the streams in ``rows``; checks all outputs."""
    start = cache.positions
    spans = [(int(i), int(i) + n) for i, n in zip(start, lengths, strict=True)]
    chunk = np.array(lengths)
    position = cache.begin(chunk)
    assert position.tolist() == [t for i, j in spans for t in range(i, j)]
    query, kv = packed(s.query, spans, rows), packed(s.key_value, spans, rows)
    out = cache.attend(0, query, kv, s.logits)
    torch.testing.assert_close(
        out, packed(s.expected, spans, rows).flatten(1), atol=1e-5, rtol=1e-5
    )
    active = [(b, j) for b, (i, j) in zip(rows, spans, strict=True) if j > i]
    last = torch.stack([s.query[b, j - 1] for b, j in active])
    out = cache.attend_last(0, last, kv, s.logits)
    expected = torch.stack([s.expected[b, j - 1].flatten() for b, j in active])
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)

    pointer_query = torch.stack([s.pointer_query[b, j - 1] for b, j in active])
    scores, ids = cache.point(
        pointer_query, packed(s.pointer_key, spans, rows), packed(s.tokens, spans, rows)
    )
    for (b, j), score, token in zip(active, scores, ids, strict=True):
        shown = {int(t): float(v) for v, t in zip(score, token, strict=True) if v > -1e29}
        assert set(shown) == {b * s.length + t for t in s.visible(j - 1)}
        for key, value in shown.items():
            dot = s.pointer_query[b, j - 1] @ s.pointer_key[b, key - b * s.length]
            assert value == pytest.approx(float(dot), abs=1e-4)
    cache.commit()


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("mode", ["rolling", "full"])
@pytest.mark.parametrize("sinks", [0, 3])
def test_single_steps_across_the_first_eviction(sinks: int, mode: str, logits: bool) -> None:
    """A4: W = 8, prefill 6, then single steps: equals recomputation at 7, 8, 9, 10 and later."""
    s = Streams(1, 24, 8, sinks, logits)
    cache = s.cache(mode)
    feed(cache, s, [6], [0])
    for _ in range(18):
        feed(cache, s, [1], [0])


@pytest.mark.parametrize("mode", ["rolling", "full"])
@pytest.mark.parametrize(("window", "sinks"), [(8, 3), (8, 0), (1, 2), (1, 0), (5, 9)])
def test_prefill_longer_than_the_cache(window: int, sinks: int, mode: str) -> None:
    """A4: a chunk of more than W + S positions, on an empty and on a used cache, then steps."""
    s = Streams(1, 64, window, sinks, True)
    cache = s.cache(mode)
    for length in (23, 1, 30, 1, 1):
        feed(cache, s, [length], [0])


@pytest.mark.parametrize("mode", ["rolling", "full"])
@pytest.mark.parametrize("sinks", [0, 3])
def test_ragged_rows_equal_recomputation(sinks: int, mode: str) -> None:
    """Rows of unequal length, empty chunks among them, in random chunkings."""
    s = Streams(4, 80, 8, sinks, True)
    rng = np.random.default_rng(11)
    for _ in range(4):
        cache = s.cache(mode)
        while True:
            widest = int(rng.choice([1, 2, 7, 20]))
            room = 80 - cache.positions
            lengths = np.minimum(rng.integers(0, widest + 1, size=4), room)
            if room.min() == 0:
                break
            if lengths.max() > 0:
                feed(cache, s, lengths.tolist(), [0, 1, 2, 3])


def test_dropped_rows_leave_the_others_alone() -> None:
    """``select`` keeps the chosen rows' contents and order."""
    s = Streams(4, 40, 8, 3, True)
    cache = s.cache()
    feed(cache, s, [5, 12, 3, 9], [0, 1, 2, 3])
    cache.select(np.array([3, 1]))
    assert cache.batch_size == 2
    assert cache.positions.tolist() == [9, 12]
    for lengths in ([1, 1], [6, 2], [0, 1], [1, 1]):
        feed(cache, s, lengths, [3, 1])


def capacities(mode: str) -> Iterator[int]:
    s = Streams(2, 60, 8, 3, True)
    cache = s.cache(mode)
    for _ in range(5):
        feed(cache, s, [12, 9], [0, 1])
        yield cache.nbytes


def test_rolling_cache_never_grows_and_full_cache_does() -> None:
    """S + W entries a layer however long the episode; bytes counted by hand."""
    entry = 2 * KV_HEADS * DIM * 4 + POINTER * 4
    assert set(capacities("rolling")) == {2 * (8 + 3) * entry}
    full = list(capacities("full"))
    assert full[-1] >= 2 * 60 * entry
    assert all(a <= b for a, b in pairwise(full))


def test_held_entries_of_an_episode() -> None:
    s = Streams(1, 4, 8, 3, True)
    assert [s.cache().entries(n) for n in (0, 5, 11, 12, 900)] == [0, 5, 11, 11, 11]
    assert [s.cache("full").entries(n) for n in (5, 900)] == [5, 900]


def test_misuse_is_named() -> None:
    s = Streams(2, 4, 8, 3, True)
    cache = s.cache()
    with pytest.raises(RuntimeError, match="call begin"):
        cache.commit()
    with pytest.raises(ValueError, match="lengths must be"):
        cache.begin(np.array([0, 0]))
    with pytest.raises(ValueError, match="lengths must be"):
        cache.begin(np.array([1]))
    cache.begin(np.array([1, 0]))
    with pytest.raises(RuntimeError, match="before commit"):
        cache.begin(np.array([1, 0]))
    with pytest.raises(ValueError, match="window=0"):
        SinkCache(
            num_layers=1, batch_size=1, num_kv_heads=1, head_dim=2, window=0, num_sink_tokens=0
        )
