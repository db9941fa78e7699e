"""Cached generation with the small policy: what ``SmallPolicy.session`` gives.

The same arithmetic as ``SmallPolicy.score`` arranged for speed on one CPU thread: new tokens are
packed without padding, keys and values live in a ring (``methods.attention.cache``), the last layer
runs only for each row's newest token.

Shape legend: B trajectories, R rows with new tokens, N packed new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from methods.attention.cache import SinkCache
from methods.base import Grammar
from methods.policy import SmallPolicy, grammar_bias, rms_norm

_MIN_PIECE = 64  # prefill in pieces of at least this many tokens: memory stays linear in the chunk


class Session:
    """Cached generation of B trajectories that advance together.

    ``extend`` or ``step`` make the next-token distribution of some rows current (``ready``);
    ``sample`` draws from it. A sampled token is not part of the context until it is fed back.
    """

    def __init__(self, policy: SmallPolicy, batch_size: int, grammar: Grammar) -> None:
        shape = policy.shape
        self._policy = policy
        self.cache = SinkCache(
            num_layers=shape.num_layers,
            batch_size=batch_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            window=policy.window,
            num_sink_tokens=policy.num_sink_tokens,
            pointer_dim=shape.pointer_dim,
            mode=policy.attention.cache,
        )
        with torch.inference_mode():
            self._table = policy.conv_table()
            self._bias = grammar_bias(torch.from_numpy(grammar.allowed))
            self._head = policy.head.t().contiguous()
        self._blocks = policy.ordered_blocks()
        self._none = shape.conv_width * policy.vocab_size
        self._offsets = np.arange(shape.conv_width) * policy.vocab_size
        self._tail = np.full((batch_size, shape.conv_width - 1), -1, dtype=np.int64)
        self._piece = max(policy.window, _MIN_PIECE)
        self.ready = np.empty(0, dtype=np.int64)

    @torch.inference_mode()
    def extend(self, chunks: Sequence[Sequence[int]]) -> None:
        """Feed row b the tokens ``chunks[b]``; an empty chunk leaves the row alone.

        Long chunks go in pieces that end together, so that every row's last token is in the last.
        """
        rest = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
        done = np.zeros_like(rest)
        self.ready = np.flatnonzero(rest)
        while rest.max() > 0:
            before_last = max(0, -(-int(rest.max()) // self._piece) - 1) * self._piece
            take = np.maximum(rest - before_last, 0)
            tokens = [t for c, i, n in zip(chunks, done, take, strict=True) for t in c[i : i + n]]
            rest, done = rest - take, done + take
            self._forward(np.array(tokens, dtype=np.int64), take, predict=not rest.any())

    @torch.inference_mode()
    def step(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Feed one token [R] to each of some rows int64 [R], in ascending order."""
        lengths = np.zeros(len(self._tail), dtype=np.int64)
        lengths[rows] = 1
        self.ready = rows
        self._forward(tokens, lengths, predict=True)

    @torch.inference_mode()
    def sample(
        self, states: np.ndarray, uniforms: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One token for each ready row, by inverting the distribution function in float64.

        Args:
            states: int64 [R] grammar states.
            uniforms: float64 [R] in [0, 1), or None to take the most likely token.

        Returns:
            token ids int64 [R], log-probabilities float64 [R].
        """
        hidden, scores, ids = self._current
        bias = self._bias.index_select(0, torch.from_numpy(states))
        logits = torch.addmm(bias, hidden, self._head)
        scores = scores + bias.gather(1, ids)
        top = torch.maximum(logits.amax(1, keepdim=True), scores.amax(1, keepdim=True))
        weights = logits.sub_(top).exp_()
        weights.scatter_add_(1, ids, scores.sub_(top).exp_())
        mass = weights.numpy().astype(np.float64)
        cumulative = mass.cumsum(axis=1)
        total = cumulative[:, -1]
        if uniforms is None:
            tokens = mass.argmax(axis=1)
        else:
            target = np.minimum(uniforms * total, np.nextafter(total, 0.0))
            tokens = (cumulative <= target[:, None]).sum(axis=1)
        return tokens, np.log(mass[np.arange(len(tokens)), tokens] / total)

    @torch.inference_mode()
    def select(self, rows: np.ndarray) -> None:
        """Keep only these rows; no row is ready afterwards."""
        self.cache.select(rows)
        self._tail = self._tail[rows]
        self.ready = np.empty(0, dtype=np.int64)

    def _forward(self, tokens: np.ndarray, lengths: np.ndarray, *, predict: bool) -> None:
        """Packed new tokens [N] through the layers; the last one only where something is read."""
        policy, shape, cache = self._policy, self._policy.shape, self.cache
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        positions = cache.begin(lengths)
        rotation = policy.rotations(int(positions.max()) + 1)[positions][:, None]
        ends = np.cumsum(lengths)[lengths > 0] - 1
        single = len(ends) == len(tokens)
        last = None if single else torch.from_numpy(ends)
        x = F.embedding_bag(self._ids(tokens, lengths), self._table, mode="sum")
        final = len(self._blocks) - 1
        features = x
        for number, block in enumerate(self._blocks):
            features = x
            qkv = F.linear(rms_norm(x, block.attention_norm), block.qkv).view(
                -1, heads + 2 * kv_heads, dim
            )
            pairs = qkv.view(len(tokens), heads + 2 * kv_heads, dim // 2, 2)
            turned = torch.view_as_complex(pairs[:, : heads + kv_heads])
            turned.mul_(rotation)
            query, key_value = qkv[:, :heads], qkv[:, heads:].view(-1, 2, kv_heads, dim)
            if number < final:
                mixed = cache.attend(number, query, key_value, block.sink_logits)
            else:
                if last is not None:
                    query, x = query.index_select(0, last), x.index_select(0, last)
                mixed = cache.attend_last(number, query, key_value, block.sink_logits)
            if number < final or predict:
                x = block.feed(torch.addmm(x, mixed, block.out.t()))
        keys = F.linear(rms_norm(features, policy.pointer_norm), policy.pointer_key)
        hidden = rms_norm(x, policy.final_norm)
        pointed = F.linear(hidden, policy.pointer_query)
        query = pointed[:, :-1] * shape.pointer_dim**-0.5
        scores, ids = cache.point(query, keys, torch.from_numpy(tokens))
        cache.commit()
        self._current = (hidden, scores + pointed[:, -1:], ids)

    def _ids(self, tokens: np.ndarray, lengths: np.ndarray) -> Tensor:
        """Rows of the convolution table [N, w] for packed tokens; remembers each row's tail."""
        past = self._tail.shape[1]
        end = np.cumsum(lengths)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        # every row's tail goes in front of its new tokens
        place = np.arange(len(tokens)) + past * (rows + 1)
        line = np.empty(len(tokens) + past * len(lengths), dtype=np.int64)
        starts = end - lengths + past * np.arange(len(lengths))
        line[starts[:, None] + np.arange(past)] = self._tail
        line[place] = tokens
        stops = end + past * (np.arange(len(lengths)) + 1)
        self._tail = line[stops[:, None] - past + np.arange(past)]
        seen = line[place[:, None] - np.arange(past + 1)]
        return torch.from_numpy(np.where(seen < 0, self._none, seen + self._offsets))
