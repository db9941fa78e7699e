"""A fingerprint of this machine's float arithmetic.

Two machines with the same fingerprint are expected to agree to the byte; others within tolerance.
The inputs come from integer arithmetic, which is exact everywhere, so that a difference can only
come from the operation under test: its kernel, instruction set, and order of summation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _grid(*shape: int, salt: int) -> torch.Tensor:
    """Float32 numbers in [-1, 1), exact multiples of 2**-15, by a multiplicative integer hash."""
    import torch

    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count, dtype=torch.int64) + salt * 1_000_003
    mixed = (index * 2_654_435_761) % (1 << 32)
    return ((mixed >> 16).to(torch.float32) / 32768.0 - 1.0).reshape(shape)


def _attention() -> torch.Tensor:
    import torch

    q, k, v = (_grid(1, 2, 70, 24, salt=salt).requires_grad_(True) for salt in (1, 2, 3))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    # A scalar loss: handing autograd the gradient of ``out`` would load its symbolic shapes first.
    (out * _grid(1, 2, 70, 24, salt=4)).sum().backward()  # type: ignore[no-untyped-call]
    parts = [out, q.grad, k.grad, v.grad]
    return torch.cat([part.detach().flatten() for part in parts if part is not None])


def _computations() -> dict[str, Callable[[], torch.Tensor]]:
    import torch

    # Odd sizes, so that vectorised loops run their tails too.
    return {
        "attention": _attention,
        "exp": lambda: torch.exp(4 * _grid(1003, salt=5)),
        "log": lambda: torch.log(_grid(1003, salt=6).abs() + 2.0**-16),
        "logsumexp": lambda: torch.logsumexp(8 * _grid(33, 517, salt=7), dim=-1),
        "matmul_float32": lambda: _grid(65, 97, salt=8) @ _grid(97, 129, salt=9),
        "matmul_float64": lambda: _grid(65, 97, salt=10).double() @ _grid(97, 65, salt=11).double(),
        "rsqrt": lambda: torch.rsqrt(_grid(1003, salt=12).abs() + 1e-3),
        "silu": lambda: torch.nn.functional.silu(6 * _grid(1003, salt=13)),
        "sin": lambda: torch.sin(100 * _grid(1003, salt=14)),
        "softmax": lambda: torch.softmax(8 * _grid(33, 517, salt=15), dim=-1),
        "sum": lambda: _grid(100_003, salt=16).sum(),
    }


def numerics_report() -> dict[str, str]:
    """Name of each computation -> SHA-256 (first 16 hex digits) of its result's bytes.

    Compared between two run records, it names the operation in which two machines differ.
    """
    return {
        name: hashlib.sha256(compute().detach().contiguous().numpy().tobytes()).hexdigest()[:16]
        for name, compute in _computations().items()
    }


def numerics_fingerprint(report: dict[str, str] | None = None) -> str:
    """SHA-256 (hex) over a ``numerics_report`` (made now if None is given)."""
    report = numerics_report() if report is None else report
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(report.items()))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
