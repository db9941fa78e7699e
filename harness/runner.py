"""The matrix: look after every cell of a plan until each has its result, or a reason why not.

One cell's failure never stops the others. Cells that another process runs are waited for: two
matrices over one directory share the work, and both end with all results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from harness import plan as planning
from harness import results
from harness.cell import CellOutcome
from harness.errors import UserError
from harness.executors.base import Executor, Task
from harness.lock import CellBusyError
from harness.plan import PlannedCell, Selection
from harness.publish import publish

OK = "ok"
FAILED = "failed"
STOPPED = "stopped"

_ELSEWHERE_SECONDS = 0.5


@dataclass(frozen=True)
class CellResult:
    """What became of a cell.

    Args:
        cell: The cell.
        status: ``ok``, ``failed`` or ``stopped`` (cut off or not begun, because the user asked).
        reason: Why it failed, in a sentence; empty if it did not.
        reused: Nothing was run for it.
        unchanged: Its metrics file held these same bytes before.
        notes: Lines to show.
        error: ``{"type", "message", ...}`` of a failed attempt.
    """

    cell: PlannedCell
    status: str
    reason: str = ""
    reused: bool = False
    unchanged: bool = False
    notes: Sequence[str] = ()
    error: Mapping[str, Any] | None = None


class Observer(Protocol):
    """Who is told what happens, from one thread."""

    def on_start(self, cell: PlannedCell) -> None:
        """A cell begins to run."""

    def on_event(self, cell: PlannedCell, event: Mapping[str, Any]) -> None:
        """A running cell reports progress."""

    def on_result(self, result: CellResult) -> None:
        """A cell has its result."""

    def note(self, text: str) -> None:
        """A line to show."""

    def tick(self) -> None:
        """Some time has passed."""


class SuiteMirror(Protocol):
    """MLflow's copy of the matrix; nothing that it does can fail a cell."""

    def on_event(self, cell: PlannedCell, event: Mapping[str, Any]) -> None:
        """A running cell reports progress."""

    def on_outcome(self, cell: PlannedCell, outcome: CellOutcome) -> str | None:
        """A cell has a document; a line to show, if there is something to say."""

    def close(self, results: Sequence[CellResult]) -> str | None:
        """The matrix has ended; a line to show, if there is something to say."""


@dataclass
class Matrix:
    """A run of a plan.

    Args:
        cells: The plan.
        selection: What it was made by.
        executor: Runs the cells.
        observer: Is told what happens.
        mirror: Mirrors cells, or None.
        stop_level: 0 run on, 1 save and stop, 2 stop at once.
    """

    cells: Sequence[PlannedCell]
    selection: Selection
    executor: Executor
    observer: Observer
    mirror: SuiteMirror | None
    stop_level: Callable[[], int]
    _results: dict[str, CellResult] = field(default_factory=dict)

    def run(self) -> list[CellResult]:
        """Look after all cells; their results in the plan's order. Never raises for a cell."""
        for cell in self.cells:
            self._settle(cell)
        self._execute([cell for cell in self.cells if cell.runs])
        self._wait_for_others()
        found = [
            self._results.get(cell.name) or CellResult(cell, STOPPED, "not begun")
            for cell in self.cells
        ]
        if self.mirror is not None:
            self._say(self.mirror.close(found))
        return found

    def _settle(self, cell: PlannedCell) -> None:
        """Give a cell that need not run its result."""
        if cell.state == planning.FAILED:
            self._end(CellResult(cell, FAILED, cell.reason, reused=True, error=cell.error))
        elif cell.state in {planning.DONE, planning.PUBLISH}:
            assert cell.outcome is not None
            self._conclude(cell, cell.outcome)

    def _execute(self, cells: Sequence[PlannedCell]) -> None:
        if not cells:
            return
        by_task = {id(task): (task, cell) for task, cell in ((self._task(c), c) for c in cells)}

        def on_event(task: Task, event: Mapping[str, Any]) -> None:
            cell = by_task[id(task)][1]
            if self.mirror is not None:
                self.mirror.on_event(cell, event)
            self.observer.on_event(cell, event)

        def on_end(task: Task, end: CellOutcome | UserError) -> None:
            self._on_end(by_task[id(task)][1], end)

        self.executor.run(
            [task for task, _ in by_task.values()],
            on_start=lambda task: self.observer.on_start(by_task[id(task)][1]),
            on_event=on_event,
            on_end=on_end,
            stop_level=self.stop_level,
            tick=self.observer.tick,
        )

    def _task(self, cell: PlannedCell) -> Task:
        return Task(cell.request, cell.resources, force=self.selection.force)

    def _on_end(self, cell: PlannedCell, end: CellOutcome | UserError) -> None:
        if isinstance(end, CellBusyError):
            return  # somebody was faster: waited for below
        if isinstance(end, UserError):
            text = str(end).replace("\n", " ")
            self._end(CellResult(cell, FAILED, text))
        elif end.document is None:
            self._end(CellResult(cell, STOPPED, "stopped; the same command continues it"))
        else:
            self._conclude(cell, end)

    def _conclude(self, cell: PlannedCell, outcome: CellOutcome) -> None:
        """Publish and mirror a document."""
        assert outcome.document is not None
        error = None
        status, reason, unchanged = OK, "", False
        notes: list[str] = []
        try:
            new = results.dumps(outcome.document).encode("utf-8")
            unchanged = cell.target.is_file() and cell.target.read_bytes() == new
            if not unchanged:
                published = publish(
                    cell.target,
                    outcome.document,
                    cell.request.spec,
                    overwrite=self.selection.overwrite,
                    keep_in=cell.request.cell_dir,
                )
                notes += published.notes
        except (UserError, OSError) as failure:
            status, reason = FAILED, str(failure).replace("\n", " ")
        if outcome.status != "ok" and status == OK:
            error = planning.read_failure(cell) or outcome.document["error"]
            status, reason = FAILED, f"{error['type']}: {error['message']}"
        if self.mirror is not None and (line := self.mirror.on_outcome(cell, outcome)):
            notes.append(line)
        self._end(CellResult(cell, status, reason, outcome.reused, unchanged, notes, error))

    def _end(self, result: CellResult) -> None:
        self._results[result.cell.name] = result
        self.observer.on_result(result)

    def _say(self, line: str | None) -> None:
        if line:
            self.observer.note(line)

    def _wait_for_others(self) -> None:
        """Wait for the cells of other processes; run what they leave behind."""
        told = False
        # What another process has just done is not to be done once more.
        selection = replace(self.selection, force=False, retry_failed=False)
        while not self.stop_level():
            left = [cell for cell in self.cells if cell.name not in self._results]
            if not left:
                return
            if not told:
                told = True
                self.observer.note(
                    f"Waiting for {len(left)} cell{'s' * (len(left) > 1)} that another process runs."
                )
            self.observer.tick()
            looked = [planning.inspect(cell, selection) for cell in left]
            for cell in looked:
                self._settle(cell)
            runnable = [cell for cell in looked if cell.runs]
            if runnable:
                self._execute_unforced(runnable)
            elif any(cell.state == planning.ELSEWHERE for cell in looked):
                time.sleep(_ELSEWHERE_SECONDS)

    def _execute_unforced(self, cells: Sequence[PlannedCell]) -> None:
        before, self.selection = self.selection, replace(self.selection, force=False)
        try:
            self._execute(cells)
        finally:
            self.selection = before
