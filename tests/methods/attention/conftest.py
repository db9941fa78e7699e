"""Inputs and a definition of the attention in plain loops, independent of the package's masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


@dataclass
class Inputs:
    """query [B, Hq, T, D], key and value [B, Hkv, T, D], sink_logits [Hq], weight like query."""

    query: Tensor
    key: Tensor
    value: Tensor
    sink_logits: Tensor
    weight: Tensor

    def leaves(self, logits: bool) -> list[Tensor]:
        return [self.query, self.key, self.value, *([self.sink_logits] if logits else [])]


@pytest.fixture
def make_inputs() -> Callable[..., Inputs]:
    def make(
        rows: int = 2,
        heads: int = 4,
        key_heads: int = 2,
        length: int = 17,
        width: int = 4,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> Inputs:
        g = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=dtype).requires_grad_()

        keys = (rows, key_heads, length, width)
        return Inputs(
            draw(rows, heads, length, width),
            draw(*keys),
            draw(*keys),
            draw(heads),
            draw(rows, heads, length, width).detach(),
        )

    return make


@pytest.fixture
def by_loops() -> Callable[..., Tensor]:
    def attend(
        inputs: Inputs,
        *,
        window: int | None,
        num_sink_tokens: int,
        logits: bool,
        scale: float,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """One query at a time, from the sentence that defines the attention."""
        query, key, value = (x.detach().double() for x in (inputs.query, inputs.key, inputs.value))
        rows, heads, length, _ = query.shape
        group = heads // key.shape[1]
        ids = torch.zeros(rows, length, dtype=torch.int64) if document_ids is None else document_ids
        out = torch.zeros_like(query)
        for b in range(rows):
            for i in range(length):
                own = [j for j in range(length) if ids[b, j] == ids[b, i]]
                if ids[b, i] == -1:
                    continue
                near = [j for j in own if window is None or i - j < window]
                seen = sorted(j for j in {*near, *own[:num_sink_tokens]} if j <= i)
                for h in range(heads):
                    scores = (key[b, h // group, seen] @ query[b, h, i] * scale).tolist()
                    extra = [float(inputs.sink_logits[h].detach())] if logits else []
                    top = max(scores + extra)
                    total = sum(math.exp(s - top) for s in scores + extra)
                    for j, s in zip(seen, scores, strict=True):
                        out[b, h, i] += math.exp(s - top) / total * value[b, h // group, j]
        return out

    return attend
