"""``auto-research agent-eval``: run one cell and write what it measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from harness.builtins import registries
from harness.cell import CellOutcome, CellRequest, command_line, run_cell, shown
from harness.cli.failures import advice
from harness.cli.options import PathType, WholeNumber
from harness.cli.stopping import StopRequests
from harness.errors import EXIT_FAILED, EXIT_INTERRUPTED, UserError
from harness.plugins import without_repeats
from harness.publish import check_target, publish, target_path
from harness.spec import CellSpec, build_spec
from methods.base import Benchmark

if TYPE_CHECKING:
    from harness import tracking


@dataclass(frozen=True)
class _Options:
    """The command's options as typed; see ``agent-eval --help``."""

    method: str | None
    benchmark: str | None
    episodes: int | None
    updates: int | None
    seed: int
    metrics_dir: Path
    runs_dir: Path
    plugins: tuple[Path, ...]
    tracking_uri: str | None
    no_track: bool
    as_json: bool
    force: bool
    overwrite: bool


def _path_option(*names: str, **options: Any) -> Callable[[Any], Any]:
    return click.option(*names, type=PathType(), show_default=True, **options)


@click.command("agent-eval")
@click.option("--method", metavar="NAME", help="What to train (see `list`).  [required]")
@click.option("--benchmark", metavar="NAME", help="What to train it on.  [required]")
@click.option(
    "--episodes",
    type=WholeNumber(1),
    metavar="N",
    help="Held-out episodes to evaluate.  [default: the benchmark's]",
)
@click.option(
    "--updates",
    type=WholeNumber(0),
    metavar="N",
    help="Policy updates; 0 evaluates the base policy only.  [default: the benchmark's]",
)
@click.option(
    "--seed",
    type=WholeNumber(0),
    metavar="N",
    default=42,
    show_default=True,
    help="Drives training and evaluation.",
)
@_path_option(
    "--metrics-dir",
    default=Path("metrics"),
    help="Metrics go to DIR/<method>/<benchmark>-seed<N>.json.",
)
@_path_option("--runs-dir", default=Path("runs"), help="Checkpoints, logs, trajectories, run.json.")
@_path_option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    help="Also load methods and benchmarks from a Python file (repeatable).",
)
@click.option(
    "--tracking-uri",
    metavar="URI",
    help="Where MLflow mirrors the run.  [default: $MLFLOW_TRACKING_URI or sqlite:///mlflow.db]",
)
@click.option("--no-track", is_flag=True, help="Do not mirror to MLflow (`track sync` can later).")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics JSON instead of a table.")
@click.option("--force", is_flag=True, help="Run anew; what an earlier run left is set aside.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace a metrics file that is unreadable or of another cell.",
)
@click.pass_context
def agent_eval(ctx: click.Context, /, **options: Any) -> None:
    """Train a method by RL on a benchmark, evaluate it, and write what was measured.

    The same command gives the same metrics file, to the byte. If it is interrupted or killed, the
    same command continues; if it has finished, the result is reused (--force runs anew).

    \b
    Exit codes: 0 done, 1 the cell failed or is being run elsewhere, 2 usage,
    4 an unreadable file is in the way, 130 interrupted.
    """
    ctx.exit(_run(_Options(**options)))


def _run(options: _Options) -> int:
    from harness.cli.display import ProgressDisplay, stderr_console

    spec, benchmark, origins = _resolve(options)
    target = target_path(options.metrics_dir, spec)
    check_target(target, spec, overwrite=options.overwrite)
    request = CellRequest(
        spec,
        options.runs_dir,
        without_repeats(options.plugins),
        origins=origins,
        argv=command_line(),
    )
    display = ProgressDisplay(stderr_console())
    display.note(f"cell {spec.cell_id[:12]} in {_shown_path(request.cell_dir)}")
    with _Mirror(request, options.tracking_uri, enabled=not options.no_track) as mirror:

        def on_event(event: Mapping[str, Any]) -> None:
            mirror.on_event(event)
            display.on_event(event)

        with StopRequests(display.note) as stop, display:
            outcome = run_cell(
                request, force=options.force, on_event=on_event, stop_level=stop.level
            )
        if stop.asked and outcome.document is not None:
            display.note("The cell had come to its end already; finishing with what it gave.")
        return _conclude(options, request, outcome, benchmark, target, mirror, display.note)


def _conclude(
    options: _Options,
    request: CellRequest,
    outcome: CellOutcome,
    benchmark: Benchmark,
    target: Path,
    mirror: _Mirror,
    note: Callable[[str], None],
) -> int:
    """Publish, mirror and print what a cell gave; the exit code."""
    if outcome.document is None:
        note(f"Stopped. To continue: {_continuing(request)}")
        return EXIT_INTERRUPTED
    if outcome.reused:
        note(_reuse_note(outcome, request))
    published = publish(
        target,
        outcome.document,
        request.spec,
        overwrite=options.overwrite,
        keep_in=request.cell_dir,
    )
    for line in published.notes:
        note(line)
    mirror.finish(outcome, note)
    _print(options, request, outcome, benchmark, target)
    if outcome.status == "failed":
        raise _failure(outcome, request, published.path)
    return 0


def _resolve(options: _Options) -> tuple[CellSpec, Benchmark, dict[str, str]]:
    known = registries(options.plugins)
    if options.method is None:
        raise _not_given("--method", known.methods.names())
    if options.benchmark is None:
        raise _not_given("--benchmark", known.benchmarks.names())
    # Both names first: a typing mistake should not wait for an import.
    origins = {
        "method": known.methods.entry(options.method).origin,
        "benchmark": known.benchmarks.entry(options.benchmark).origin,
    }
    method = known.methods.load(options.method)
    benchmark = known.benchmarks.load(options.benchmark)
    spec = build_spec(
        method,
        benchmark,
        seed=options.seed,
        episodes=options.episodes,
        updates=options.updates,
    )
    return spec, benchmark, origins


def _not_given(option: str, names: Sequence[str]) -> UserError:
    return UserError(
        f"{option} is missing; allowed are {', '.join(names)}.",
        hint="auto-research list   # says what each of them is",
    )


def _reuse_note(outcome: CellOutcome, request: CellRequest) -> str:
    record, now = outcome.record, request.code
    note = f"Finished already ({record['finished_at']}): the result is reused; --force runs anew."
    made = record["extra"].get("code_fingerprint")
    if made is None or now is None:
        note += " Warning: which code made it is not known, so a new run may differ."
    elif made != now:
        commit = (record["git"]["commit"] or "unknown")[:12]
        note += (
            f" Warning: other code made it (code {made[:12]}, commit {commit}; now code {now[:12]}),"
            " so a new run may differ."
        )
    return note


class _Mirror:
    """MLflow's copy of a cell: begun once the cell runs, so that its slow import overlaps.

    Args:
        request: The cell.
        uri: ``--tracking-uri``.
        enabled: If not, only what ``track sync`` needs later is written.

    Raises:
        UserError: If the URI names no store.
    """

    def __init__(self, request: CellRequest, uri: str | None, *, enabled: bool) -> None:
        self._request = request
        self._uri = uri
        self._enabled = enabled
        self._child: tracking.Mirror | None = None
        if enabled:
            from harness.tracking import check_tracking_uri

            check_tracking_uri(uri)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Start MLflow's process when the worker has started up."""
        if event.get("event") == "ready" and self._child is None and self._enabled:
            self._start()

    def _start(self) -> tracking.Mirror:
        from harness import tracking

        self._child = tracking.Mirror.start(self._uri)
        return self._child

    def finish(self, outcome: CellOutcome, note: Callable[[str], None]) -> None:
        """Hand over a finished cell within a bounded time; failing here is a line, not a failure.

        A reused result that was mirrored when it was made is left alone.
        """
        if outcome.document is None:
            return
        if outcome.reused and outcome.record["mlflow_run_id"] is not None:
            return
        from harness import results
        from harness.tracking_request import save_request

        cell_dir = self._request.cell_dir
        try:
            history = results.read_lines(cell_dir / "history.jsonl")
        except results.ResultsError:
            history = []
        names = ("trajectories.jsonl", "worker.log")
        files = [cell_dir / name for name in names if (cell_dir / name).is_file()]
        what = (cell_dir, outcome.document, outcome.record, history, files)
        if not self._enabled:
            try:
                save_request(*what)
            except (OSError, ValueError) as error:
                note(f"Warning: this run cannot be mirrored later: no mirror.json ({error}).")
            return
        mirrored = (self._child or self._start()).finish(*what)
        note(mirrored.message)
        if mirrored.run_id is not None:
            record = {**outcome.record, "mlflow_run_id": mirrored.run_id}
            results.write_run_record(cell_dir / "run.json", record)

    def __enter__(self) -> _Mirror:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is not None:
            self._child.close()


def _print(
    options: _Options,
    request: CellRequest,
    outcome: CellOutcome,
    benchmark: Benchmark,
    target: Path,
) -> None:
    from harness import results
    from harness.cli.display import print_result

    assert outcome.document is not None
    if options.as_json:
        click.echo(results.dumps(outcome.document), nl=False)
    elif outcome.status == "ok":
        files: Sequence[tuple[str, str]] = [
            ("metrics", _shown_path(target)),
            ("run", _shown_path(request.cell_dir / "run.json")),
        ]
        print_result(outcome.document, outcome.record, benchmark.summary, files)


def _failure(outcome: CellOutcome, request: CellRequest, target: Path) -> UserError:
    error = outcome.record["extra"]["error"]  # with real paths, unlike the metrics file's
    return UserError(
        f"The cell failed: {error['type']}: {error['message']}\n"
        f"  log:      {_shown_path(request.cell_dir / 'worker.log')}\n"
        f"  recorded: {_shown_path(target)}",
        hint=advice(error, _continuing(request), request.cell_dir),
        exit_code=EXIT_FAILED,
    )


def _continuing(request: CellRequest) -> str:
    """The command that continues this cell; ``--force`` would begin it anew once more."""
    return shown([word for word in request.argv if word != "--force"])


def _shown_path(path: Path) -> str:
    """Relative to the current directory where it lies below it, absolute elsewhere."""
    absolute = path.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
