"""Numbers at sequence lengths, as a memory sweep measures them.

``peak_bytes[_HOW]_at_T`` is the peak memory at T tokens; HOW is ``cpu``, ``cuda`` or ``simulated``.
``seconds[_HOW]_at_T`` is the time at T tokens; it differs from run to run, so it is looked for in the
run record, too (``durations`` and ``extra``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.reporting.data import CellData

_AT_LENGTH = re.compile(
    r"(?P<what>peak_bytes|seconds)(?:_(?P<how>cpu|cuda|simulated))?_at_(?P<t>[1-9][0-9]{0,11})"
)


@dataclass(frozen=True)
class AtLength:
    """A number measured at a sequence length.

    Args:
        tokens: T.
        value: None where it could not be measured.
        how: ``"cpu"``, ``"cuda"``, ``"simulated"`` or None if the name does not say.
        out_of_memory: There is no value because memory ran out.
    """

    tokens: int
    value: float | None
    how: str | None
    out_of_memory: bool = False


def is_at_length(metric: str) -> bool:
    """Whether a metric is one number of a sweep over lengths."""
    return _AT_LENGTH.fullmatch(metric) is not None


def tokens_of(metric: str) -> int:
    """T of such a metric; 0 for others."""
    match = _AT_LENGTH.fullmatch(metric)
    return int(match["t"]) if match else 0


def at_lengths(cell: CellData, what: str) -> list[AtLength]:
    """``what`` (``peak_bytes`` or ``seconds``) of a cell at each length, by length.

    Taken from the metrics, and from the run record's ``durations`` and ``extra`` where the metrics
    have none for that length: what differs from run to run is not in the metrics.
    """
    found: dict[tuple[int, str], AtLength] = {}
    record = cell.record or {}
    for numbers in (record.get("extra", {}), record.get("durations", {})):
        for name, value in numbers.items():
            match = _AT_LENGTH.fullmatch(name)
            if match and match["what"] == what and _is_number(value):
                found[int(match["t"]), match["how"] or ""] = AtLength(
                    int(match["t"]), float(value), match["how"]
                )
    for name, entry in cell.document["metrics"].items():
        match = _AT_LENGTH.fullmatch(name)
        if match and match["what"] == what:
            found[int(match["t"]), match["how"] or ""] = AtLength(
                int(match["t"]), entry["value"], match["how"], out_of_memory(entry)
            )
    return [point for _, point in sorted(found.items())]


def how_measured(metric: str) -> str | None:
    """``"cpu"``, ``"cuda"`` or ``"simulated"`` if the metric's name says so."""
    match = _AT_LENGTH.fullmatch(metric)
    return match["how"] if match else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def out_of_memory(entry: Mapping[str, Any]) -> bool:
    """Whether a metric has no value because memory ran out, by its reason."""
    reason = str(entry.get("reason", "")).lower()
    return entry["value"] is None and bool(re.search(r"\boom\b|out of memory", reason))
