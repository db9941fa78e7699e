"""What an executor is given and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.cell import CellOutcome, CellRequest
from harness.errors import UserError
from methods.base import Method, Resources


@dataclass(frozen=True)
class Task:
    """One cell to run.

    Args:
        request: The cell and its folders.
        resources: What it occupies while it runs.
        force: Set aside what the cell's folder holds and start anew.
    """

    request: CellRequest
    resources: Resources
    force: bool = False


class Executor(Protocol):
    """Runs cells side by side; which executor ran a cell never shows in its result."""

    def run(
        self,
        tasks: Sequence[Task],
        *,
        on_start: Callable[[Task], None],
        on_event: Callable[[Task, Mapping[str, Any]], None],
        on_end: Callable[[Task, CellOutcome | UserError], None],
        stop_level: Callable[[], int],
        tick: Callable[[], None],
    ) -> None:
        """Run all tasks, in this order where there is room for some only; return when all ended.

        Every callback is called from the calling thread, one at a time.

        Args:
            tasks: The cells.
            on_start: A cell has begun.
            on_event: A cell's worker reports progress (see ``RunContext.report``).
            on_end: A cell ended, well or not. One cell's failure never stops the others: a cell
                that could not be run at all (somebody else runs it, its folder cannot be written)
                ends with the ``UserError``. Called for every task that was started.
            stop_level: Polled several times a second: 0 run on, 1 start nothing more and let
                running cells save and stop, 2 stop them at once.
            tick: Called several times a second, to redraw.
        """
        ...


def resources_of(method: Method) -> Resources:
    """What a cell of a method occupies; one core where the method does not say."""
    declared = getattr(method, "resources", None)
    return declared if isinstance(declared, Resources) else Resources()
