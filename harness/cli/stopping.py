"""What a person who wants a running cell to stop can do: Ctrl-C, kill, closing the terminal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopRequests:
    """Counts SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first saves and stops, the second kills.

    A SIGHUP that is ignored (``nohup``) stays ignored.

    Args:
        note: Shows a line.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._count = 0
        self._told = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether the user asked at all."""
        return self._count > 0

    def level(self) -> int:
        """How often the user asked; says so here, since printing in a handler could deadlock."""
        if self._count > self._told:
            self._told = self._count
            self._note(
                "Stopping: saving a checkpoint (Ctrl-C again stops at once)."
                if self._count == 1
                else "Stopping at once."
            )
        return self._count

    def __enter__(self) -> StopRequests:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
