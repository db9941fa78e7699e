"""How a running cell and its result look: bars on a terminal, plain lines elsewhere.

Progress goes to stderr and may be lost (a closed pipe must not cost a run); results go to stdout.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PLAIN_SECONDS = 10.0
_PIPED_WIDTH = 110
_OWN_KEYS = {"event", "phase", "done", "total", "attempt", "t", "update", "steps_per_second"}
_SHOWN_NUMBERS = 4


class _Console(Console):
    """A console that reports a closed pipe instead of ending the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError(32, "the reader of the output has gone")


def _console(stream: IO[str]) -> Console:
    return _Console(
        file=stream,
        width=None if stream.isatty() else _PIPED_WIDTH,
        highlight=False,
        soft_wrap=False,
    )


def stdout_console() -> Console:
    """Console for results; a fixed width where nobody's terminal says one."""
    return _console(sys.stdout)


def stderr_console() -> Console:
    """Console for progress and notes."""
    return _console(sys.stderr)


def clock(seconds: float) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Rate:
    """Units a second of one phase, from its first event on (a resumed phase starts above zero)."""

    def __init__(self, done: float, now: float) -> None:
        self._done, self._start = done, now

    def describe(self, done: float, total: float, now: float) -> str:
        elapsed = now - self._start
        if elapsed <= 0 or done <= self._done:
            return ""
        rate = (done - self._done) / elapsed
        unit = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
        left = f", {clock((total - done) / rate)} left" if total > done else ""
        return unit + left


def _numbers(event: Mapping[str, Any]) -> str:
    shown = [
        f"{key} {value:.3g}"
        for key, value in event.items()
        if key not in _OWN_KEYS and isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    return "  ".join(shown[:_SHOWN_NUMBERS])


def _sentence(event: Mapping[str, Any]) -> str:
    """The line that an event other than progress is worth, empty for none."""
    kind, phase = event.get("event"), event.get("phase")
    message, done = event.get("message"), event.get("done")
    if kind == "warning" and isinstance(message, str):
        return f"Warning: {message}"
    if kind == "waiting" and isinstance(message, str):
        return f"{phase}: {message}" if isinstance(phase, str) else message
    if kind == "resumed" and isinstance(phase, str) and isinstance(done, (int, float)):
        return f"{phase}: continuing after {done:g}, from the last checkpoint"
    return ""


class ProgressDisplay:
    """Shows a worker's events; a context manager whose ``on_event`` never raises.

    Args:
        console: Where to show them; bars if it is a terminal, else one line each ten seconds and at
            the end of each phase.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._rates: dict[str, _Rate] = {}
        self._printed = 0.0
        self._said: set[str] = set()
        self._broken = False

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bars = _bars(self._console)
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            with contextlib.suppress(OSError):  # the terminal has gone
                self._bars.stop()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Show one event; malformed ones and a closed output are ignored."""
        if self._broken:
            return
        if event.get("event") != "progress":
            self._say_once(_sentence(event))
            return
        phase, done, total = event.get("phase"), event.get("done"), event.get("total")
        if not isinstance(phase, str):
            return
        if not isinstance(done, (int, float)) or not isinstance(total, (int, float)):
            return
        now = time.monotonic()
        rate = self._rates.setdefault(phase, _Rate(done, now)).describe(done, total, now)
        try:
            if self._bars is not None:
                self._show_bar(phase, done, total, f"{rate}  {_numbers(event)}".strip())
            else:
                self._show_line(phase, done, total, rate, event, now)
        except OSError:
            self._broken = True

    def note(self, text: str) -> None:
        """Print a line among the progress."""
        try:
            self._console.print(text, markup=False, soft_wrap=True)
        except OSError:
            self._broken = True

    def _say_once(self, text: str) -> None:
        """Print what an event says; a loop that repeats itself is heard once."""
        if text and text not in self._said:
            self._said.add(text)
            self.note(text)

    def _show_bar(self, phase: str, done: float, total: float, text: str) -> None:
        assert self._bars is not None
        if phase not in self._tasks:
            from rich.markup import escape

            self._tasks[phase] = self._bars.add_task(escape(phase), total=total, text="")
        self._bars.update(self._tasks[phase], completed=done, total=total, text=text)

    def _show_line(
        self,
        phase: str,
        done: float,
        total: float,
        rate: str,
        event: Mapping[str, Any],
        now: float,
    ) -> None:
        if done < total and now - self._printed < _PLAIN_SECONDS:
            return
        self._printed = now
        parts = [f"{phase}: {done:g}/{total:g}", rate, _numbers(event)]
        self.note("  ".join(part for part in parts if part))


def _bars(console: Console) -> Progress:
    """Phase, bar and counts keep their width; the text takes what is left and is cut first."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=13)),
        BarColumn(bar_width=16, table_column=Column(no_wrap=True, min_width=16)),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.fields[text]}", markup=False, table_column=rest),
        console=console,
        refresh_per_second=4,
        expand=True,
    )


def metric_text(entry: Mapping[str, Any] | None, *, plus_minus: str = "±") -> tuple[str, str]:
    """A metric of a metrics document as (value with standard error, sample size).

    Args:
        entry: ``{"value", "unit", "direction", "n", "stderr"[, "reason"]}`` or None if absent.
        plus_minus: The sign between value and standard error.
    """
    if entry is None:
        return "not reported", ""
    size = f"n = {entry['n']}"
    if entry["value"] is None:
        return f"undefined ({entry.get('reason', 'no reason given')})", size
    if entry["unit"] == "bytes":
        return size_text(entry["value"]), size
    share = entry["unit"] == "share"
    number = f"{entry['value']:.3f}" if share else f"{entry['value']:.6g}"
    if entry["stderr"] is not None:
        error = f"{entry['stderr']:.3f}" if share else f"{entry['stderr']:.2g}"
        number += f" {plus_minus} {error}"
    return (number if share else f"{number} {entry['unit']}"), size


def size_text(number: float) -> str:
    """A number of bytes with a binary prefix, three or four figures."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"


def print_result(
    document: Mapping[str, Any],
    record: Mapping[str, Any],
    summary: Sequence[tuple[str, str]],
    files: Sequence[tuple[str, str]],
) -> None:
    """The short table of a finished cell, and where its files are.

    Args:
        document: The metrics document.
        record: The run record (seconds, memory).
        summary: (label, metric name) rows that the benchmark chose.
        files: (label, path) lines below the table.
    """
    from rich.markup import escape
    from rich.table import Table

    console = stdout_console()
    sign = "±" if console.encoding.lower().startswith("utf") else "+-"
    title = (
        f"{document['method']['name']} on {document['benchmark']['name']}, seed {document['seed']}, "
        f"{document['budget']['updates']} update{'' if document['budget']['updates'] == 1 else 's'}"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(style="dim")
    for label, name in summary:
        value, size = metric_text(document["metrics"].get(name), plus_minus=sign)
        table.add_row(escape(label), escape(value), size)
    seconds = record["durations"].get("total")
    if seconds is not None:
        table.add_row("seconds", f"{seconds:.1f}", f"attempt {record['attempt']}")
    memory = record["peak_memory"]["bytes"]
    if memory is not None:
        count = record["peak_memory"].get("processes") or 1
        beside = "resident" if count == 1 else f"resident, sum of {count} processes"
        table.add_row("peak memory", size_text(memory), beside)
    console.print(title, style="bold", markup=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(table)
    # Rich pads every cell; trailing blanks would be noise in a log.
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)
    console.print()
    for label, path in files:
        console.print(f"{label:<8} {path}", markup=False, soft_wrap=True)
