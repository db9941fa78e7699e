"""What a suite's cells need: nothing, a result to be published again, a run, or a continuation.

Planning imports the methods' and benchmarks' own modules (names, configs, data fingerprints), never
torch, so that a run with nothing to do ends within seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import results, strict_json
from harness.builtins import Registries, registries
from harness.cell import CellOutcome, CellRequest, finished
from harness.errors import UserError
from harness.executors.base import resources_of
from harness.lock import is_busy
from harness.publish import check_target, target_path
from harness.spec import build_spec
from harness.suite import Suite, SuiteCell
from harness.variants import Variant, register_variants
from methods.base import Resources

DONE = "done"
PUBLISH = "publish"
RUN = "run"
RESUME = "resume"
RETRY = "retry"
FAILED = "failed"
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class PlannedCell:
    """One cell and what it needs.

    Args:
        request: The cell and its folders.
        target: Its metrics file.
        resources: What it occupies while it runs.
        state: ``done`` (the result is there and published), ``publish`` (there, but its metrics
            file is missing or another), ``run``, ``resume`` (an attempt was cut off), ``retry`` (it
            failed, and shall run again), ``failed`` (it failed, and shall not), ``elsewhere``
            (another process runs it).
        reason: Why, in words.
        seconds: How long it will take by earlier runs; None if nothing like it has run here.
        outcome: The result that is there (``done``, ``publish``).
        error: How it failed (``failed``): ``{"type", "message", ...}``.
    """

    request: CellRequest
    target: Path
    resources: Resources
    state: str
    reason: str
    seconds: float | None = None
    outcome: CellOutcome | None = None
    error: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """``<method>/<benchmark>-seed<N>``."""
        spec = self.request.spec
        return f"{spec.method.name}/{spec.benchmark.name}-seed{spec.seed}"

    @property
    def runs(self) -> bool:
        """Whether it will occupy the machine."""
        return self.state in {RUN, RESUME, RETRY}


@dataclass(frozen=True)
class Selection:
    """What of a suite to run and how to treat what is there.

    Args:
        methods: Only these; empty: all. Like the next two.
        benchmarks: Only these.
        seeds: Only these.
        retry_failed: Run failed cells again.
        force: Run every cell anew.
        overwrite: Replace metrics files that are unreadable or of another cell.
    """

    methods: Sequence[str] = ()
    benchmarks: Sequence[str] = ()
    seeds: Sequence[int] = ()
    retry_failed: bool = False
    force: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class Places:
    """Where results, runs and further parts are.

    Args:
        metrics_dir: Root of the metrics files.
        runs_dir: Root of the cells' folders.
        plugins: Plugin files.
        argv: The command as typed, for the records.
    """

    metrics_dir: Path
    runs_dir: Path
    plugins: Sequence[Path] = ()
    argv: Sequence[str] = field(default_factory=list)


def selected(suite: Suite, selection: Selection) -> list[SuiteCell]:
    """The suite's cells that the selection leaves.

    Raises:
        UserError: If it names something that the suite does not have, or leaves nothing.
    """
    chosen: Sequence[tuple[str, Sequence[Any], Sequence[Any]]] = (
        ("method", selection.methods, suite.methods),
        ("benchmark", selection.benchmarks, suite.benchmarks),
        ("seed", selection.seeds, suite.seeds),
    )
    for kind, asked, known in chosen:
        for item in asked:
            if item not in known:
                raise UserError(
                    f"The suite {suite.name!r} has no {kind} {item!r}; it has "
                    f"{', '.join(map(str, known))}.",
                    hint="Choose from these, or add it to a suite file of your own (--suite FILE); "
                    "a single cell of any kind runs with auto-research agent-eval.",
                )
    cells = [
        cell
        for cell in suite.cells()
        if (not selection.methods or cell.method in selection.methods)
        and (not selection.benchmarks or cell.benchmark in selection.benchmarks)
        and (not selection.seeds or cell.seed in selection.seeds)
    ]
    if not cells:
        raise UserError(f"No cell of the suite {suite.name!r} is left by these options.")
    return cells


def make_plan(suite: Suite, selection: Selection, places: Places) -> list[PlannedCell]:
    """The cells to look after, in the suite's order.

    Raises:
        UserError: If a name or a budget is wrong, or metrics files of other cells are in the way.
    """
    cells = selected(suite, selection)
    known = registries(places.plugins)
    register_variants(known.methods, suite.variants)
    for cell in cells:  # all names first: a typing mistake should not wait for an import
        _look_up(known, cell, suite)
    variants = {variant.name: variant for variant in suite.variants}
    requests = [_request(known, cell, variants.get(cell.method), places) for cell in cells]
    targets = [target_path(places.metrics_dir, request.spec) for request, _ in requests]
    for (request, _), target in zip(requests, targets, strict=True):
        check_target(target, request.spec, overwrite=selection.overwrite)
    planned = [
        inspect(PlannedCell(request, target, resources, RUN, ""), selection)
        for (request, resources), target in zip(requests, targets, strict=True)
    ]
    times = EarlierRuns(places.runs_dir)
    return [
        replace(item, seconds=times.estimate(item.request)) if item.runs else item
        for item in planned
    ]


def _look_up(known: Registries, cell: SuiteCell, suite: Suite) -> None:
    try:
        known.methods.entry(cell.method)
        known.benchmarks.entry(cell.benchmark)
    except UserError as error:
        raise UserError(f"The suite {suite.path}: {error.message}", hint=error.hint) from None


def _request(
    known: Registries, cell: SuiteCell, variant: Variant | None, places: Places
) -> tuple[CellRequest, Resources]:
    method = known.methods.load(cell.method)
    benchmark = known.benchmarks.load(cell.benchmark)
    spec = build_spec(
        method, benchmark, seed=cell.seed, episodes=cell.episodes, updates=cell.updates
    )
    request = CellRequest(
        spec,
        places.runs_dir,
        places.plugins,
        variant,
        {
            "method": known.methods.entry(cell.method).origin,
            "benchmark": known.benchmarks.entry(cell.benchmark).origin,
        },
        places.argv,
    )
    return request, resources_of(method)


def inspect(cell: PlannedCell, selection: Selection) -> PlannedCell:  # noqa: PLR0911
    """The cell with the state that its folder and metrics file put it in."""
    folder = cell.request.cell_dir
    if is_busy(folder):
        return replace(cell, state=ELSEWHERE, reason="another process is running it")
    if selection.force:
        return replace(cell, state=RUN, reason="--force")
    outcome = finished(folder, cell.request.spec)
    if outcome is not None:
        return _finished_cell(cell, outcome)
    try:
        record = results.read_run_record(folder / "run.json")
    except results.MissingResultError:
        left = folder.is_dir() and any(path.name != "lock" for path in folder.iterdir())
        if left:
            return replace(cell, state=RESUME, reason="an earlier run was cut off")
        return replace(cell, state=RUN, reason="has not run here")
    except results.ResultsError as unusable:
        return replace(cell, state=RUN, reason=f"its run record cannot be used: {unusable.reason}")
    error = record["extra"].get("error")
    if record["status"] != "failed":
        return replace(cell, state=RESUME, reason="an earlier run was cut off")
    if error is None or was_cut_off(error):
        return replace(cell, state=RESUME, reason="its process was killed")
    reason = f"{error['type']}: {error['message']}"
    if selection.retry_failed:
        return replace(cell, state=RETRY, reason=f"it failed before ({reason})")
    return replace(cell, state=FAILED, reason=reason, error=error)


def was_cut_off(error: Mapping[str, Any]) -> bool:
    """Whether a failure came from outside: somebody killed a process of the cell."""
    killed_member = error["type"] == "TeamError" and "killed by signal 9" in error["message"]
    return error["type"] == "killed" or killed_member


def _finished_cell(cell: PlannedCell, outcome: CellOutcome) -> PlannedCell:
    assert outcome.document is not None
    try:
        same = cell.target.read_bytes() == results.dumps(outcome.document).encode("utf-8")
        reason = "its metrics file holds something else"
    except FileNotFoundError:
        same, reason = False, "its metrics file is missing"
    except OSError as error:
        same, reason = False, f"its metrics file cannot be read: {error.strerror}"
    if not same:
        return replace(cell, state=PUBLISH, reason=reason, outcome=outcome)
    reason = f"finished {outcome.record['finished_at']}"
    made = outcome.record["extra"].get("code_fingerprint")
    if made != cell.request.code:
        reason += ", by other code (--force runs it anew)"
    return replace(cell, state=DONE, reason=reason, outcome=outcome)


class EarlierRuns:
    """How long cells took, by the run records below a folder.

    Args:
        runs_dir: Root of the cells' folders.
    """

    def __init__(self, runs_dir: Path) -> None:
        self._seconds: dict[tuple[str, str, int, int], list[float]] = {}
        for path in sorted(runs_dir.glob("*/*/metrics.json")):
            self._add(path.parent)

    def _add(self, folder: Path) -> None:
        try:
            document = results.read_metrics(folder / "metrics.json")
            record = results.read_run_record(folder / "run.json")
        except results.ResultsError:
            return
        if document["status"] != "ok" or record["status"] != "ok":
            return
        seconds = sum(_totals([record, *_earlier_records(folder)]))
        if seconds:
            budget = document["budget"]
            key = (
                document["method"]["name"],
                document["benchmark"]["name"],
                budget["episodes"],
                budget["updates"],
            )
            self._seconds.setdefault(key, []).append(seconds)

    def estimate(self, request: CellRequest) -> float | None:
        """Seconds: the median of the same method, benchmark and budget, else of any method's."""
        spec = request.spec
        task = (spec.benchmark.name, spec.budget.episodes, spec.budget.updates)
        own = self._seconds.get((spec.method.name, *task))
        if own:
            return statistics.median(own)
        others = [item for key, found in self._seconds.items() if key[1:] == task for item in found]
        return statistics.median(others) if others else None


def _earlier_records(folder: Path) -> Iterable[Mapping[str, Any]]:
    """Records of attempts that the last one continued."""
    for path in sorted((folder / "attempts").glob("*/run.json")):
        if (path.parent / "lock").exists() or (path.parent / "code-fingerprint").exists():
            continue  # all of it was set aside: the last attempt began anew
        try:
            yield results.read_run_record(path)
        except results.ResultsError:
            continue


def _totals(records: Iterable[Mapping[str, Any]]) -> Iterable[float]:
    for record in records:
        seconds = record["durations"].get("total")
        if isinstance(seconds, (int, float)):
            yield float(seconds)


def read_failure(cell: PlannedCell) -> Mapping[str, Any] | None:
    """How the last attempt of a cell failed, by its run record."""
    try:
        record = results.read_run_record(cell.request.cell_dir / "run.json")
    except (results.ResultsError, strict_json.StrictJSONError):
        return None
    error = record["extra"].get("error")
    return error if isinstance(error, Mapping) else None
