"""Who may see whom: documents, padding, the window and the sink tokens.

Shape legend: B rows, T positions. A *document* is a maximal run of one id in a row; an id that comes
back later in the same row is an error, because it would be unclear whether it is one document or
two. Id -1 is padding. Left padding, right padding and packing are all just runs.

Position i of a document that starts at a sees, of its own document only,
``max(a, i - W + 1) .. i`` (W, the window, counts the query itself) and ``a .. a + S - 1`` up to i
(S, the sink tokens).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

PADDING_ID = -1
_CACHE_ENTRIES = 16
_CACHE_MAX_ELEMENTS = 1 << 20
_SCRATCH_ENTRIES = 32
P = ParamSpec("P")
R = TypeVar("R")


def outlives_modes(build: Callable[P, R]) -> Callable[P, R]:
    """Make the tensors of ``build`` fit to be kept, whatever mode the first caller happens to be in.

    A tensor made under ``torch.inference_mode`` can never be saved for a backward pass, so a table
    first needed by inference would break the training step that finds it later.
    """

    @wraps(build)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.no_grad():
            return build(*args, **kwargs)

    return run


@dataclass(frozen=True, eq=False)
class Layout:
    """The documents of a batch, in row order. All tensors are on the CPU.

    Args:
        rows: B.
        length: T.
        kind: ``"plain"``: every row is one document of T tokens; ``"right-padded"``: every row is
            at most one document, from position 0; ``"packed"``: anything else.
        document_row: int64 [N], the row of each document.
        document_start: int64 [N], its first position.
        document_stop: int64 [N], one past its last position.
        padding: bool [B, T], or None when there is none.
        scratch: What a backend derived from this layout (index tables), see ``kept``.
    """

    rows: int
    length: int
    kind: Literal["plain", "right-padded", "packed"]
    document_row: Tensor
    document_start: Tensor
    document_stop: Tensor
    padding: Tensor | None
    scratch: dict[Any, Any] = field(default_factory=dict, repr=False)

    def kept(self, name: tuple[Any, ...], build: Callable[[], R]) -> R:
        """What ``build`` returns, kept under ``name``; the oldest of more than 32 is dropped.

        Layouts live as long as their ids are in use, and some settings (a window that is swept) can
        take any number of values.
        """
        if name not in self.scratch:
            made = outlives_modes(build)()
            while len(self.scratch) >= _SCRATCH_ENTRIES:
                self.scratch.pop(next(iter(self.scratch)))
            self.scratch[name] = made
        return self.scratch[name]  # type: ignore[no-any-return]

    def documents(self) -> list[tuple[int, int, int]]:
        """(row, start, stop) of each document."""
        columns = (self.document_row, self.document_start, self.document_stop)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def padding_on(self, device: torch.device) -> Tensor | None:
        """The padding mask [B, 1, T, 1] on a device, or None."""
        padding = self.padding
        if padding is None:
            return None
        return self.kept(("padding", device), lambda: padding[:, None, :, None].to(device))

    def starts(self) -> Tensor:
        """int64 [B, T]: where each position's document starts; T at padding (sees nothing)."""
        starts = torch.full((self.rows, self.length), self.length)
        for row, start, stop in self.documents():
            starts[row, start:stop] = start
        return starts


def plain_layout(rows: int, length: int) -> Layout:
    """Every row one document of full length (``document_ids=None``)."""
    row = torch.arange(rows)
    return Layout(
        rows, length, "plain", row, torch.zeros_like(row), torch.full_like(row, length), None
    )


_cache: deque[tuple[Tensor, Layout]] = deque(maxlen=_CACHE_ENTRIES)


def layout_of(document_ids: Tensor) -> Layout:
    """The layout of ``document_ids`` [B, T].

    The layers of a network pass the same ids again and again, so the last few layouts are kept. They
    are looked up by *value* (a comparison costs microseconds): looking them up by tensor identity
    would go wrong when ids are changed in place.

    Raises:
        ValueError: If an id is below -1, or a document's tokens are not contiguous in its row.
    """
    ids = document_ids.detach().to("cpu", torch.int64)
    for known, layout in tuple(_cache):
        if known.shape == ids.shape and torch.equal(known, ids):
            return layout
    layout = _analyse(ids)
    if ids.numel() <= _CACHE_MAX_ELEMENTS:
        _cache.appendleft((outlives_modes(ids.clone)(), layout))
    return layout


@outlives_modes
def _analyse(ids: Tensor) -> Layout:
    rows, length = ids.shape
    if ids.numel() and int(ids.min()) < PADDING_ID:
        raise ValueError(
            f"document_ids holds {int(ids.min())}; allowed: ids >= 0, and -1 for padding."
        )
    first = torch.ones(rows, min(length, 1), dtype=torch.bool)
    changes = torch.cat([first, ids[:, 1:] != ids[:, :-1]], 1)
    row, start = changes.nonzero(as_tuple=True)
    ends = torch.cat([row * length + start, torch.tensor([rows * length])])
    stop = start + ends.diff()
    document = ids[row, start]
    kept = document != PADDING_ID
    row, start, stop, document = row[kept], start[kept], stop[kept], document[kept]
    _require_contiguous(row, document)

    padding = ids == PADDING_ID
    has_padding = bool(padding.any())
    kind: Literal["plain", "right-padded", "packed"] = "packed"
    if not start.any():
        kind = "right-padded" if has_padding else "plain"
    return Layout(rows, length, kind, row, start, stop, padding if has_padding else None)


def _require_contiguous(row: Tensor, document: Tensor) -> None:
    pairs, counts = torch.unique(torch.stack([row, document]), dim=1, return_counts=True)
    if pairs.shape[1] == row.shape[0]:
        return
    bad_row, bad_id = pairs[:, int(counts.argmax())].tolist()
    raise ValueError(
        f"document_ids: id {bad_id} appears in {int(counts.max())} separate runs of row {bad_row}; "
        "a document is one contiguous run. Give each run an id of its own."
    )


def visible(
    length: int, window: int | None, num_sink_tokens: int, layout: Layout | None = None
) -> Tensor:
    """The attention mask, written out: the definition every backend is held to.

    Args:
        length: T.
        window: W, the query included, or None for full causal attention.
        num_sink_tokens: S, the first positions of a document that stay visible.
        layout: The documents, or None for one document a row.

    Returns:
        bool [T, T], or [B, T, T] with a layout; True where query i (first) sees key j (second).
    """
    query = torch.arange(length)[:, None]
    key = torch.arange(length)[None, :]
    if layout is None or layout.kind == "plain":
        start: Tensor = torch.zeros(length, 1, dtype=torch.int64)
    else:
        start = layout.starts()[:, :, None]
    seen = (key <= query) & (key >= start)
    if window is not None:
        seen = seen & ((query - key < window) | (key - start < num_sink_tokens))
    return seen
