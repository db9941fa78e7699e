"""How a running matrix looks: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from harness.cli.display import clock
from harness.plan import PlannedCell
from harness.runner import FAILED, OK, CellResult

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_PLAIN_SECONDS = 20.0
_REDRAW_SECONDS = 0.25


@dataclass
class _Running:
    """What is known of a running cell."""

    cell: PlannedCell
    began: float
    phase: str = "starting"
    done: float = 0
    total: float = 0
    reward: float | None = None
    phase_began: float = 0.0
    phase_from: float = 0
    printed: float = 0.0

    @property
    def progress(self) -> str:
        """``rl 30/120``."""
        return f"{self.phase} {self.done:g}/{self.total:g}" if self.total else self.phase

    def left(self, now: float) -> float | None:
        """Seconds left: of the whole cell by earlier runs, else of this phase by its pace."""
        if self.cell.seconds is not None:
            return max(self.cell.seconds - (now - self.began), 0.0)
        made = self.done - self.phase_from
        if made <= 0 or now <= self.phase_began:
            return None
        return (self.total - self.done) * (now - self.phase_began) / made

    def take(self, event: Mapping[str, Any], now: float) -> bool:
        """Take in a progress event; whether a phase has come to its end."""
        phase, done, total = event.get("phase"), event.get("done"), event.get("total")
        if event.get("event") != "progress" or not isinstance(phase, str):
            return False
        if not isinstance(done, (int, float)) or not isinstance(total, (int, float)):
            return False
        if phase != self.phase:
            self.phase, self.phase_began, self.phase_from = phase, now, done
        self.done, self.total = done, total
        reward = event.get("reward")
        if isinstance(reward, (int, float)):
            self.reward = float(reward)
        return done >= total


class MatrixDisplay:
    """Shows a matrix; a context manager whose methods never raise.

    Args:
        console: Where to.
        cells: The plan.
    """

    def __init__(self, console: Console, cells: Sequence[PlannedCell]) -> None:
        self._console = console
        self._cells = cells
        self._running: dict[str, _Running] = {}
        self._results: dict[str, CellResult] = {}
        self._live: Live | None = None
        self._drawn = 0.0
        self._broken = False
        self._said: set[tuple[str, str]] = set()

    def __enter__(self) -> MatrixDisplay:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal has gone
                self._redraw()
                self._live.stop()
            self._live = None

    def on_start(self, cell: PlannedCell) -> None:
        """A cell begins."""
        self._running[cell.name] = _Running(cell, time.monotonic())
        if self._live is None:
            how = "continuing" if cell.state == "resume" else "running"
            about = "" if cell.seconds is None else f", about {clock(cell.seconds)}"
            self.note(f"{cell.name}: {how}{about}")

    def on_event(self, cell: PlannedCell, event: Mapping[str, Any]) -> None:
        """A running cell reports."""
        state = self._running.get(cell.name)
        if state is None:
            return
        message = event.get("message")
        if event.get("event") == "warning" and isinstance(message, str):
            self._once(cell.name, f"Warning: {message}")
        now = time.monotonic()
        phase_ended = state.take(event, now)
        if event.get("event") == "waiting" and isinstance(event.get("phase"), str):
            state.phase, state.total = f"{event['phase']} (waiting)", 0
        if self._live is None and state.total:
            if not phase_ended and now - state.printed < _PLAIN_SECONDS:
                return
            state.printed = now
            self.note(
                "  ".join(filter(None, (f"{cell.name}: {state.progress}", _rest(state, now))))
            )

    def _once(self, name: str, text: str) -> None:
        if (name, text) not in self._said:
            self._said.add((name, text))
            self.note(f"{name}: {text}")

    def on_result(self, result: CellResult) -> None:
        """A cell has its result."""
        name = result.cell.name
        state = self._running.pop(name, None)
        self._results[name] = result
        took = "" if state is None else f" after {clock(time.monotonic() - state.began)}"
        if self._live is None and not (result.reused and result.unchanged):
            self.note(f"{name}: {_verdict(result)}{took}")
        for line in result.notes:
            self.note(f"{name}: {line}")

    def note(self, text: str) -> None:
        """A line above the table."""
        if self._broken:
            return
        try:
            self._console.print(text, markup=False, soft_wrap=True)
        except OSError:
            self._broken = True

    def tick(self) -> None:
        """Redraw now and then."""
        now = time.monotonic()
        if self._live is not None and not self._broken and now - self._drawn > _REDRAW_SECONDS:
            self._drawn = now
            try:
                self._redraw()
            except OSError:
                self._broken = True

    def _redraw(self) -> None:
        assert self._live is not None
        self._live.update(self.table(self._console.height - 4), refresh=True)

    def table(self, rows: int) -> Table:
        """The cells with state, progress, reward so far and time left.

        Args:
            rows: Most rows; running and failed cells go first where not all fit.
        """
        from rich.markup import escape
        from rich.table import Table

        now = time.monotonic()
        done = len(self._results)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, expand=False)
        table.add_column(f"cell ({done} of {len(self._cells)} ended)", no_wrap=True, ratio=None)
        table.add_column("state", no_wrap=True)
        table.add_column("reward", justify="right", no_wrap=True)
        table.add_column("left", justify="right", no_wrap=True)
        shown = self._shown(max(rows, 1))
        for cell in self._cells:
            if cell.name in shown:
                table.add_row(escape(cell.name), *map(escape, self._row(cell, now)))
        if len(shown) < len(self._cells):
            table.add_row(f"... and {len(self._cells) - len(shown)} more", "", "", "")
        return table

    def _row(self, cell: PlannedCell, now: float) -> tuple[str, str, str]:
        state = self._running.get(cell.name)
        if state is not None:
            left = state.left(now)
            reward = "" if state.reward is None else f"{state.reward:.2f}"
            return state.progress, reward, "" if left is None else clock(left)
        result = self._results.get(cell.name)
        if result is not None:
            return _verdict(result)[:28], "", ""
        if cell.state == "elsewhere":
            return "run by another process", "", ""
        return "waiting", "", "" if cell.seconds is None else clock(cell.seconds)

    def _shown(self, rows: int) -> set[str]:
        def rank(cell: PlannedCell) -> int:
            result = self._results.get(cell.name)
            if cell.name in self._running:
                return 0
            if result is not None:
                return 1 if result.status == FAILED else 3
            return 2

        return {cell.name for cell in sorted(self._cells, key=rank)[:rows]}


def _rest(state: _Running, now: float) -> str:
    left = state.left(now)
    parts = ["" if state.reward is None else f"reward {state.reward:.3g}"]
    parts.append("" if left is None else f"about {clock(left)} left")
    return "  ".join(filter(None, parts))


def _verdict(result: CellResult) -> str:
    if result.status == OK:
        return "finished already" if result.reused else "done"
    if result.status == FAILED:
        return f"failed ({result.reason.partition(':')[0]})" if result.reason else "failed"
    return "stopped"
