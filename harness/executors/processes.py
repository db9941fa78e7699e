"""Cells side by side on this machine, each in a fresh process."""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.cell import CellOutcome, run_cell
from harness.errors import EXIT_FAILED, UserError
from harness.executors.base import Task

_TICK_SECONDS = 0.1


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Processor cores that this process may use: its affinity, and its container's quota.

    Args:
        cgroup: Where a container's quota stands (cgroup v2).
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = cgroup.read_text(encoding="ascii").split()
        return max(1, min(cores, math.floor(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def default_jobs(tasks: Sequence[Task]) -> int:
    """As many cells at once as cores allow, by the cell that occupies most of them."""
    return max(1, usable_cores() // max((task.resources.cpus for task in tasks), default=1))


class ProcessExecutor:
    """Runs up to ``jobs`` cells at once; a thread looks after each cell's process.

    Args:
        jobs: Cells at once; None: as many as cores allow (:func:`default_jobs`).
    """

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs

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
        """See :class:`harness.executors.base.Executor`."""
        jobs = self._jobs or default_jobs(tasks)
        waiting = list(tasks)
        running: dict[int, threading.Thread] = {}
        happened: queue.SimpleQueue[tuple[int, Task, Any, bool]] = queue.SimpleQueue()
        level = [0]  # shared with the threads
        number = 0
        try:
            while running or (waiting and not level[0]):
                level[0] = max(level[0], stop_level())
                while waiting and len(running) < jobs and not level[0]:
                    task = waiting.pop(0)
                    on_start(task)
                    number += 1
                    thread = threading.Thread(
                        target=_look_after,
                        args=(number, task, happened, lambda: level[0]),
                        name=str(task.request.spec.cell_name),
                    )
                    running[number] = thread
                    thread.start()
                for index, task, what, ended in _drain(happened):
                    if not ended:
                        on_event(task, what)
                        continue
                    running.pop(index).join()
                    on_end(task, what)
                tick()
        finally:
            level[0] = 2  # an error in a callback: leave no process behind
            for thread in running.values():
                thread.join()


def _drain(
    happened: queue.SimpleQueue[tuple[int, Task, Any, bool]],
) -> list[tuple[int, Task, Any, bool]]:
    """All that has happened; waits a tick for the first of it."""
    found = []
    try:
        found.append(happened.get(timeout=_TICK_SECONDS))
        while True:
            found.append(happened.get_nowait())
    except queue.Empty:
        return found


def _look_after(
    number: int,
    task: Task,
    happened: queue.SimpleQueue[tuple[int, Task, Any, bool]],
    stop_level: Callable[[], int],
) -> None:
    """Run one cell and tell what happens; ends with exactly one end."""
    tell = partial(_tell, happened, number, task)
    end: CellOutcome | UserError
    try:
        end = run_cell(task.request, force=task.force, on_event=tell, stop_level=stop_level)
    except UserError as error:
        end = error
    except Exception as error:  # noqa: BLE001 - the other cells must not pay for a fault of ours
        end = UserError(
            f"The cell could not be run: {type(error).__name__}: {error}", exit_code=EXIT_FAILED
        )
    happened.put((number, task, end, True))


def _tell(
    happened: queue.SimpleQueue[tuple[int, Task, Any, bool]],
    number: int,
    task: Task,
    event: Mapping[str, Any],
) -> None:
    happened.put((number, task, event, False))
