"""``auto-research reproduce``: run every cell of a suite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cell import command_line, shown
from harness.cli.failures import advice
from harness.cli.options import PathType, WholeNumber
from harness.cli.stopping import StopRequests
from harness.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from harness.plugins import without_repeats

if TYPE_CHECKING:
    from harness.plan import PlannedCell, Selection
    from harness.runner import CellResult
    from harness.suite import Suite


@dataclass(frozen=True)
class _Options:
    """The command's options as typed; see ``reproduce --help``."""

    suite: str
    methods: tuple[str, ...]
    benchmarks: tuple[str, ...]
    seeds: tuple[int, ...]
    jobs: int | None
    dry_run: bool
    retry_failed: bool
    force: bool
    overwrite: bool
    metrics_dir: Path
    runs_dir: Path
    plugins: tuple[Path, ...]
    tracking_uri: str | None
    no_track: bool
    as_json: bool


@click.command("reproduce")
@click.option(
    "--suite",
    metavar="NAME|FILE",
    default="default",
    show_default=True,
    help="suites/NAME.toml, or the path of a suite file.",
)
@click.option("--method", "methods", multiple=True, metavar="NAME", help="Only this method.")
@click.option(
    "--benchmark", "benchmarks", multiple=True, metavar="NAME", help="Only this benchmark."
)
@click.option(
    "--seed", "seeds", multiple=True, type=WholeNumber(0), metavar="N", help="Only this seed."
)
@click.option(
    "--jobs",
    type=WholeNumber(1),
    metavar="N",
    help="Cells at once.  [default: usable cores / cores a cell]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be run or skipped, and why.")
@click.option("--retry-failed", is_flag=True, help="Run failed cells again.")
@click.option("--force", is_flag=True, help="Run every cell anew; earlier runs are set aside.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace metrics files that are unreadable or of another cell.",
)
@click.option(
    "--metrics-dir",
    type=PathType(),
    default=Path("metrics"),
    show_default=True,
    help="Metrics go to DIR/<method>/<benchmark>-seed<N>.json.",
)
@click.option(
    "--runs-dir",
    type=PathType(),
    default=Path("runs"),
    show_default=True,
    help="Checkpoints, logs, trajectories, run.json.",
)
@click.option(
    "--plugin",
    "plugins",
    type=PathType(),
    multiple=True,
    metavar="FILE",
    help="Also load methods and benchmarks from a Python file (repeatable).",
)
@click.option(
    "--tracking-uri",
    metavar="URI",
    help="Where MLflow mirrors the runs.  [default: $MLFLOW_TRACKING_URI or sqlite:///mlflow.db]",
)
@click.option("--no-track", is_flag=True, help="Do not mirror to MLflow (`track sync` can later).")
@click.option("--json", "as_json", is_flag=True, help="Print the plan or the outcome as JSON.")
@click.pass_context
def reproduce(ctx: click.Context, /, **options: Any) -> None:
    """Run a suite's cells: skip finished ones, resume killed ones.

    A cell is finished if its folder in --runs-dir holds a successful result of the same cell id.
    Interrupt or kill it anywhere: the same command does the rest, and the metrics files are the same
    to the byte. Two of it at once on one directory share the work.

    \b
    Exit codes: 0 all cells succeeded, 1 a cell failed, 2 usage,
    4 an unreadable file is in the way, 130 interrupted.
    """
    ctx.exit(_run(_Options(**options)))


def _run(options: _Options) -> int:
    from harness.plan import Places, Selection, make_plan
    from harness.suite import load_suite

    suite = load_suite(options.suite)
    selection = Selection(
        options.methods,
        options.benchmarks,
        options.seeds,
        options.retry_failed,
        options.force,
        options.overwrite,
    )
    places = Places(
        options.metrics_dir, options.runs_dir, without_repeats(options.plugins), command_line()
    )
    cells = make_plan(suite, selection, places)
    if options.dry_run:
        _show_plan(options, suite, cells)
        return EXIT_OK
    return _execute(options, suite, selection, cells)


def _execute(
    options: _Options,
    suite: Suite,
    selection: Selection,
    cells: Sequence[PlannedCell],
) -> int:
    from harness.cli.display import stderr_console
    from harness.cli.matrix_display import MatrixDisplay
    from harness.executors.processes import ProcessExecutor
    from harness.runner import Matrix
    from harness.suite_mirror import CellMirror

    executor = ProcessExecutor(options.jobs)
    console = stderr_console()
    display = MatrixDisplay(console, cells)
    display.note(_heading(suite, cells))
    mirror = CellMirror(options.tracking_uri, enabled=not options.no_track)
    with StopRequests(display.note) as stop, display:
        matrix = Matrix(cells, selection, executor, display, mirror, stop.level)
        found = matrix.run()
    return _conclude(options, found)


def _heading(suite: Suite, cells: Sequence[PlannedCell]) -> str:
    counts = _counts(cells)
    return f"Suite {suite.name}: {len(cells)} cell{'s' * (len(cells) != 1)} ({counts})"


_WORDS = {
    "done": "finished already",
    "publish": "to be published again",
    "run": "to run",
    "resume": "to continue",
    "retry": "to try again",
    "failed": "failed before",
    "elsewhere": "run by another process",
}


def _counts(cells: Sequence[PlannedCell]) -> str:
    states = [cell.state for cell in cells]
    return ", ".join(f"{states.count(key)} {word}" for key, word in _WORDS.items() if key in states)


def _show_plan(options: _Options, suite: Suite, cells: Sequence[PlannedCell]) -> None:
    if options.as_json:
        rows = [
            {
                "cell": cell.name,
                "cell_id": cell.request.spec.cell_id,
                "budget": cell.request.spec.to_json()["budget"],
                "state": cell.state,
                "reason": cell.reason,
                "seconds": cell.seconds,
                "metrics": str(cell.target),
                "run_dir": str(cell.request.cell_dir),
            }
            for cell in cells
        ]
        click.echo(json.dumps({"suite": suite.name, "cells": rows}, indent=2))
        return
    click.echo(_heading(suite, cells))
    if suite.description:
        click.echo(suite.description)
    width = max(len(cell.name) for cell in cells)
    for cell in cells:
        minutes = f"{cell.seconds / 60:6.1f} min" if cell.seconds is not None else " " * 10
        click.echo(f"  {cell.name:<{width}}  {minutes}  {_WORDS[cell.state]}: {cell.reason}")
    to_run = [cell for cell in cells if cell.runs]
    known = [cell.seconds for cell in to_run if cell.seconds is not None]
    if to_run:
        click.echo(f"{len(to_run)} to run: {_total(known, len(to_run))}")


def _total(known: Sequence[float], count: int) -> str:
    if not known:
        return "nothing like them has run here, so there is no estimate"
    minutes = f"about {sum(known) / 60:.0f} minutes one after the other, by earlier runs here"
    rest = count - len(known)
    return minutes + (f", and {rest} of which nothing is known" if rest else "")


def _conclude(options: _Options, found: Sequence[CellResult]) -> int:
    from harness.runner import FAILED, OK, STOPPED

    failed = [result for result in found if result.status == FAILED]
    stopped = [result for result in found if result.status == STOPPED]
    if options.as_json:
        rows = [
            {
                "cell": result.cell.name,
                "cell_id": result.cell.request.spec.cell_id,
                "status": result.status,
                "reason": result.reason or None,
                "reused": result.reused,
                "unchanged": result.unchanged,
                "metrics": str(result.cell.target),
            }
            for result in found
        ]
        click.echo(json.dumps({"cells": rows}, indent=2))
    else:
        succeeded = [result for result in found if result.status == OK]
        reused = sum(result.reused for result in succeeded)
        unchanged = sum(result.unchanged for result in succeeded)
        click.echo(
            f"{len(succeeded)} of {len(found)} cells succeeded ({reused} finished already; metrics "
            f"files of {unchanged} hold the same bytes as before). Results: {options.metrics_dir}"
        )
    if stopped:
        click.echo(f"Stopped. To continue: {shown(command_line())}", err=True)
    if failed:
        click.echo(f"{len(failed)} of {len(found)} cells failed:", err=True)
        for result in failed:
            click.echo(_failure(options, result), err=True)
    if stopped:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failed else EXIT_OK


def _failure(options: _Options, result: CellResult) -> str:
    command = _command(options, result.cell)
    again = command
    if result.error is not None:
        folder = result.cell.request.cell_dir
        again = advice(result.error, command, folder).replace("\n", "\n    ")
    reason = " ".join(result.reason.split())
    return f"  {result.cell.name}: {reason[:500]}\n    {again}"


def _command(options: _Options, cell: PlannedCell) -> str:
    """The command that runs this cell alone again, in the same places."""
    spec = cell.request.spec
    words = ["auto-research", "reproduce", "--suite", options.suite]
    words += ["--method", spec.method.name, "--benchmark", spec.benchmark.name]
    words += ["--seed", str(spec.seed), "--retry-failed"]
    if options.metrics_dir != Path("metrics"):
        words += ["--metrics-dir", str(options.metrics_dir)]
    if options.runs_dir != Path("runs"):
        words += ["--runs-dir", str(options.runs_dir)]
    for path in options.plugins:
        words += ["--plugin", str(path)]
    if options.tracking_uri is not None:
        words += ["--tracking-uri", options.tracking_uri]
    words += ["--no-track"] * options.no_track
    return shown(words)
