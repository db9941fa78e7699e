"""The one function that everything attends through: arguments checked, backend chosen, path recorded.

Shape legend: B rows, Hq query heads, Hkv key heads, T positions, D head dimension, W window, S sink
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from methods.attention.blockwise import blockwise_attention, choose_path
from methods.attention.layout import layout_of, plain_layout
from methods.attention.reference import reference_attention

Backend = Literal["auto", "reference", "blockwise", "flex"]
BACKENDS: tuple[str, ...] = ("auto", "reference", "blockwise", "flex")
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


@dataclass(frozen=True, slots=True)
class AttentionPath:
    """Which code computes an attention.

    Args:
        backend: ``"reference"``, ``"blockwise"`` or ``"flex"``.
        kernel: The way inside it: ``"materialised"``, ``"tiled"``, ``"looped"`` or ``"compiled"``.
        memory: How the code's extra memory grows with T by construction; a measured claim needs a
            measurement (``make bench``).
    """

    backend: str
    kernel: str
    memory: Literal["quadratic", "linear"]

    def __str__(self) -> str:
        return f"{self.backend}/{self.kernel}"


_recorder: ContextVar[list[AttentionPath] | None] = ContextVar("attention_paths", default=None)


@contextmanager
def record_paths() -> Iterator[list[AttentionPath]]:
    """Record the path of every ``sink_attention`` call inside the block, in order.

    >>> with record_paths() as paths:
    ...     policy(tokens)
    >>> sorted({str(path) for path in paths})
    ['blockwise/tiled']
    """
    paths: list[AttentionPath] = []
    token = _recorder.set(paths)
    try:
        yield paths
    finally:
        _recorder.reset(token)


def resolve_backend(
    backend: str = "auto",
    *,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    length: int,
    window: int | None = None,
    num_sink_tokens: int = 0,
) -> AttentionPath:
    """What ``sink_attention`` will run for these arguments. Nothing falls back: it raises instead.

    Args:
        backend: ``"auto"`` (flex on CUDA, blockwise elsewhere) or a backend's name.
        device: Where the tensors are.
        dtype: Their dtype.
        length: T.
        window: W, or None.
        num_sink_tokens: S.

    Raises:
        ValueError: If the backend is unknown or cannot run this; the message says why.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; allowed: {', '.join(map(repr, BACKENDS))}.")
    where = torch.device(device)
    if backend == "auto":
        backend = "flex" if where.type == "cuda" else "blockwise"
    if backend == "reference":
        return AttentionPath("reference", "materialised", "quadratic")
    if backend == "blockwise":
        path = choose_path(length, window, num_sink_tokens)
        return AttentionPath("blockwise", path, "linear")
    from methods.attention.flex import require_flex

    require_flex(where, dtype)
    return AttentionPath("flex", "compiled", "linear")


def sink_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int | None = None,
    num_sink_tokens: int = 0,
    sink_logits: Tensor | None = None,
    scale: float | None = None,
    document_ids: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Causal attention with a sliding window, sink tokens and sink logits.

    Position i of a document sees positions ``max(0, i - W + 1) .. i`` and ``0 .. S - 1`` (up to i)
    of the same document; with p_ij over what it sees,

        p_ij = exp(scale * q_i . k_j) / (exp(s_h) + sum_j exp(scale * q_i . k_j)),

    where s_h is the head's sink logit (its value is zero; without sink logits the term is absent).
    Sink tokens are those of StreamingLLM (arXiv 2309.17453), sink logits those of gpt-oss (arXiv
    2508.10925). Exact gradients for query, key, value and sink_logits.

    Autocast does not reach inside: every backend computes in float32 or wider (flex in the dtype it
    is given). Call ``backward`` outside autocast, as torch advises: inside, autograd runs the
    reference's own products in the lower precision.

    Non-finite values in padding change nothing. In a real token they may reach positions that do not
    see it, as zero times infinity in a product: of its row, and with blockwise of other rows too.

    Args:
        query: [B, Hq, T, D].
        key: [B, Hkv, T, D], Hq a multiple of Hkv; query head h reads key head h // (Hq // Hkv).
        value: [B, Hkv, T, D].
        window: W >= 1, in positions, the query included; None: full causal attention.
        num_sink_tokens: S >= 0, first positions of a document that stay visible.
        sink_logits: [Hq], one learned logit a query head, or None.
        scale: Factor on the scores; None: 1 / sqrt(D).
        document_ids: Integers [B, T], -1 for padding; equal ids in one contiguous run of a row are
            one document. None: every row is one document. Padding sees nothing, is seen by nobody,
            has output 0 and gradient 0.
        backend: ``"auto"``, ``"reference"``, ``"blockwise"`` or ``"flex"``.

    Returns:
        [B, Hq, T, D], dtype of ``query``.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If shapes do not fit, a number is out of range, or the backend cannot run this.
    """
    _check_tensors(query, key, value)
    _check_numbers(window, num_sink_tokens, scale)
    rows, _, length, width = query.shape
    _check_sink_logits(sink_logits, query)
    _check_document_ids(document_ids, rows, length)
    path = resolve_backend(
        backend,
        device=query.device,
        dtype=query.dtype,
        length=length,
        window=window,
        num_sink_tokens=num_sink_tokens,
    )
    layout = plain_layout(rows, length) if document_ids is None else layout_of(document_ids)
    arguments: dict[str, Any] = {
        "window": None if window is None or window >= length else window,
        "num_sink_tokens": num_sink_tokens,
        "sink_logits": sink_logits,
        "scale": 1.0 / math.sqrt(width) if scale is None else float(scale),
        "layout": layout,
    }
    padding = layout.padding_on(query.device)
    if padding is not None:
        # A weight of zero does not stop infinity or NaN, and neither does a masked score.
        query, key, value = (x.masked_fill(padding, 0.0) for x in (query, key, value))
    with _no_autocast(query.device):
        out = _backend(path)(query, key, value, **arguments)
    record = _recorder.get()
    if record is not None:
        record.append(path)
    return out


def _backend(path: AttentionPath) -> Callable[..., Tensor]:
    if path.backend == "flex":
        from methods.attention.flex import flex_sink_attention

        return flex_sink_attention
    return blockwise_attention if path.backend == "blockwise" else reference_attention


def _no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Autocast off where it is on: the backends call different operators, so it splits them."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)  # type: ignore[no-any-return,unused-ignore]
    return nullcontext()


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; a torch.Tensor is needed.")
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; [B, H, T, D] is needed.")
        if x.dtype not in _FLOATS:
            raise TypeError(f"{name} has dtype {x.dtype}; allowed: {_names(_FLOATS)}.")
        if x.dtype != query.dtype:
            raise TypeError(f"{name} has dtype {x.dtype}, query {query.dtype}; they must be equal.")
        if x.device != query.device:
            raise ValueError(f"{name} is on {x.device}, query on {query.device}; move one of them.")
    if key.shape != value.shape:
        raise ValueError(
            f"key has shape {tuple(key.shape)}, value {tuple(value.shape)}; they must be equal."
        )
    rows, heads, length, width = query.shape
    if (key.shape[0], key.shape[2], key.shape[3]) != (rows, length, width):
        raise ValueError(
            f"query has shape {tuple(query.shape)}, key {tuple(key.shape)}; B, T and D must be equal "
            "(for decoding with a cache see methods/attention/cache.py)."
        )
    if not query.numel() or not key.numel():
        raise ValueError(
            f"query has shape {tuple(query.shape)}, key {tuple(key.shape)}; no size may be 0."
        )
    if heads % key.shape[1]:
        raise ValueError(
            f"query has {heads} heads, key {key.shape[1]}; the first must be a multiple of the second."
        )


def _check_numbers(window: int | None, num_sink_tokens: int, scale: float | None) -> None:
    if window is not None:
        if isinstance(window, bool) or not isinstance(window, int):
            raise TypeError(
                f"window is {window!r}; an int >= 1, or None for full causal, is needed."
            )
        if window < 1:
            raise ValueError(
                f"window is {window}; it counts the query itself, so it must be >= 1 "
                "(None for full causal attention)."
            )
    if isinstance(num_sink_tokens, bool) or not isinstance(num_sink_tokens, int):
        raise TypeError(f"num_sink_tokens is {num_sink_tokens!r}; an int >= 0 is needed.")
    if num_sink_tokens < 0:
        raise ValueError(f"num_sink_tokens is {num_sink_tokens}; it must be >= 0.")
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; a finite number, or None for 1 / sqrt(D), is needed.")


def _check_sink_logits(sink_logits: Tensor | None, query: Tensor) -> None:
    if sink_logits is None:
        return
    if not isinstance(sink_logits, Tensor):
        raise TypeError(
            f"sink_logits is a {type(sink_logits).__name__}; a torch.Tensor [Hq] is needed."
        )
    if sink_logits.shape != (query.shape[1],):
        raise ValueError(
            f"sink_logits has shape {tuple(sink_logits.shape)}; one logit a query head is needed: "
            f"({query.shape[1]},)."
        )
    if sink_logits.dtype not in _FLOATS:
        raise TypeError(f"sink_logits has dtype {sink_logits.dtype}; allowed: {_names(_FLOATS)}.")
    if sink_logits.device != query.device:
        raise ValueError(
            f"sink_logits is on {sink_logits.device}, query on {query.device}; move one of them."
        )


def _check_document_ids(document_ids: Tensor | None, rows: int, length: int) -> None:
    if document_ids is None:
        return
    if not isinstance(document_ids, Tensor):
        raise TypeError(
            f"document_ids is a {type(document_ids).__name__}; an integer tensor [B, T] is needed."
        )
    if document_ids.dtype not in _INTEGERS:
        raise TypeError(
            f"document_ids has dtype {document_ids.dtype}; allowed: {_names(_INTEGERS)}."
        )
    if document_ids.shape != (rows, length):
        raise ValueError(
            f"document_ids has shape {tuple(document_ids.shape)}; [B, T] = ({rows}, {length}) is "
            "needed."
        )


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
