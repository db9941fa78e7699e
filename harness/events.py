"""Progress of a cell as JSON lines: kept in the cell's folder, and piped to whoever shows it.

Standard output stays out of it: whatever user code prints goes to the cell's log.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.strict_json import finite_or_none


class EventWriter:
    """Appends events to ``events.jsonl`` and to a pipe; times the phases on the way.

    Args:
        path: Grows over all attempts of a cell; each line says its attempt.
        descriptor: Pipe that also receives each line, or None.
        attempt: 1 for the first start of the cell, and so on.
    """

    def __init__(self, path: Path, descriptor: int | None, attempt: int) -> None:
        self._stream = path.open("a+b", buffering=0)
        self._descriptor = descriptor
        self._attempt = attempt
        self._start = self._last = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._close_torn_line()

    def _close_torn_line(self) -> None:
        """A writer that was killed may have left half a line; what follows must not join it."""
        end = self._stream.seek(0, os.SEEK_END)
        if end:
            self._stream.seek(end - 1)
            if self._stream.read(1) != b"\n":
                self._stream.write(b"\n")

    def write(self, event: Mapping[str, Any]) -> None:
        """Record one event, with ``attempt`` and ``t`` (seconds since this attempt began) added.

        Non-finite numbers become null. Values that JSON does not know are written as numbers where
        they convert (NumPy scalars), as text otherwise: reporting never fails a cell.
        """
        with self._lock:
            now = time.monotonic()
            phase = event.get("phase")
            if isinstance(phase, str):
                self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
            self._last = now
            plain = json.loads(json.dumps(dict(event), default=_fallback, skipkeys=True))
            plain = finite_or_none(plain)
            plain.update(attempt=self._attempt, t=round(now - self._start, 3))
            line = json.dumps(plain, allow_nan=False).encode("ascii") + b"\n"
            self._stream.write(line)
            if self._descriptor is not None:
                self._send(line)

    def _send(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self._descriptor = None  # nobody listens any more; the file still has everything

    def phase_seconds(self) -> dict[str, float]:
        """Seconds between the events of each phase, by phase, in order of appearance."""
        return dict(self._seconds)


def _fallback(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


class EventReader:
    """Cuts a byte stream into events; what is no JSON object is skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The events that ``data`` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event)
        return events
