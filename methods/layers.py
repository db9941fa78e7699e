"""Parts of the small policy that know nothing of a whole one: a layer, RMSNorm, RoPE."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.config import PolicyShape


class _SelectRows(torch.autograd.Function):
    """x[index] for distinct indices; the gradient is a plain copy instead of an accumulation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        out = grads[0].new_zeros(ctx.rows, *grads[0].shape[1:])
        return out.index_copy_(0, index, grads[0]), None


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index] for distinct indices int64 [N]."""
    out: Tensor = cast(Any, _SelectRows).apply(x, index)
    return out


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm, arXiv 1910.07467; generation folds it into the weights and has no epsilon."""
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-12)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """RoPE on adjacent pairs as a complex product: [..., D] times complex [..., D/2]."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2)


class Block(nn.Module):
    """Parameters of one layer; ``SmallPolicy`` holds the arithmetic of both of its paths."""

    def __init__(self, shape: PolicyShape, sink_logits: bool) -> None:
        super().__init__()
        width, heads = shape.d_model, shape.num_heads + 2 * shape.num_kv_heads
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.qkv = nn.Parameter(torch.empty(heads * shape.head_dim, width))
        self.out = nn.Parameter(torch.empty(width, shape.num_heads * shape.head_dim))
        self.feed_norm = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Parameter(torch.empty(2 * shape.d_ff, width))
        self.down = nn.Parameter(torch.empty(width, shape.d_ff))
        if sink_logits:
            self.sink_logits: nn.Parameter | None = nn.Parameter(torch.zeros(shape.num_heads))
        else:
            self.register_parameter("sink_logits", None)

    def feed(self, x: Tensor) -> Tensor:
        """x + SwiGLU(norm(x)), arXiv 2002.05202."""
        hidden, half = rms_norm(x, self.feed_norm), self.down.shape[1]
        # two products: splitting one would cost a large copy in the backward pass
        gate, up = F.linear(hidden, self.gate_up[:half]), F.linear(hidden, self.gate_up[half:])
        return x + F.linear(F.silu(gate) * up, self.down)
