"""The tables of a report, as plain text with what is best marked; ``harness.reporting.formats`` writes.

Everything in the comparison comes from metrics documents alone, so that it is the same with and
without run folders; what only a run record knows is in the table of cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from harness.reporting.data import CellData, ReportData, Table
from harness.reporting.measures import (
    BEFORE,
    BenchmarkView,
    Difference,
    Measured,
    Reference,
    views,
)
from harness.reporting.text import name_text, number, prefix, sentence_text, signed

BETTER = {
    "maximize": "higher is better",
    "minimize": "lower is better",
    "neutral": "neither is better",
}
NOTHING = "-"
_MAX_REASONS = 20


def comparison_tables(data: ReportData) -> list[Table]:
    """What the metrics documents say: overview, a comparison a benchmark, failures, all metrics."""
    all_views = views(data)
    tables = [_overview(all_views)] if len(all_views) > 1 else []
    tables += [_results(view) for view in all_views]
    tables += [table for table in (_failed(data), _unusable(data)) if table.rows]
    return tables + [_all_metrics(view) for view in all_views if view.entries]


# --- Texts of numbers ----------------------------------------------------------------------------


def mean_text(measured: Measured | None, unit: str) -> str:
    """``0.608 [0.484, 0.732]``; without brackets for a single seed."""
    if measured is None:
        return NOTHING
    text = number(measured.mean, unit)
    if measured.interval is not None:
        ends = (measured.interval.low, measured.interval.high)
        text += " [" + ", ".join(number(end, unit, measured.mean) for end in ends) + "]"
    return text + (f" {prefix(measured.mean)}" if unit == "bytes" else "")


def difference_text(difference: Difference | None, unit: str) -> str:
    """``+0.024 [-0.011, +0.058], 360 tasks``; a single pair has no interval."""
    if difference is None:
        return NOTHING
    interval = difference.interval
    ends = (interval.low, interval.high)
    like = max((abs(end) for end in (interval.mean, *ends) if math.isfinite(end)), default=0.0)
    text = signed(number(interval.mean, unit, like))
    if all(map(math.isfinite, ends)):
        text += " [" + ", ".join(signed(number(end, unit, like)) for end in ends) + "]"
    text += f" {prefix(like)}" if unit == "bytes" else ""
    return f"{text}, {plural(interval.n, difference.by)}"


def plural(count: int, noun: str) -> str:
    """``1 seed``, ``3 seeds``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def tasks_text(measured: Measured | None) -> str:
    """Tasks a seed, or their range."""
    if measured is None:
        return NOTHING
    low, high = measured.tasks
    return str(low) if low == high else f"{low} to {high}"


def reference_name(reference: Reference) -> str:
    """``do nothing (floor)``."""
    player = name_text(reference.player)
    return player if reference.kind == "reference" else f"{player} ({reference.kind})"


def failure_text(cell: CellData) -> str:
    """Why a cell failed."""
    error = cell.document["error"]
    return f"{sentence_text(error['type'])}: {sentence_text(error['message'])}"


def best_of(view: BenchmarkView, metric: str) -> set[str]:
    """The methods with the best mean, ties included; none if there is nothing to choose from."""
    sign = {"maximize": 1.0, "minimize": -1.0}.get(view.direction(metric))
    means = {
        method: found.mean
        for method in view.methods
        if (found := view.measured(method, metric)) is not None
    }
    if sign is None or len(means) < 2:
        return set()
    top = max(sign * mean for mean in means.values())
    return {
        method
        for method, mean in means.items()
        if math.isclose(sign * mean, top, rel_tol=1e-9, abs_tol=1e-12)
    }


# --- The tables ----------------------------------------------------------------------------------


def _overview(all_views: Sequence[BenchmarkView]) -> Table:
    """Method x benchmark, the headline metric of each."""
    rows: dict[tuple[int, str], list[str]] = {}
    best = set()
    rank = {"floor": 0, "reference": 2, "ceiling": 3}
    for column, view in enumerate(all_views):
        if view.headline is None:
            continue
        for reference in view.references(view.headline):
            row = rows.setdefault(
                (rank[reference.kind], reference_name(reference)), [NOTHING] * len(all_views)
            )
            row[column] = mean_text(view.measured(None, reference.metric), view.unit(view.headline))
    for column, view in enumerate(all_views):
        top = best_of(view, view.headline) if view.headline else set()
        for method in view.methods:
            row = rows.setdefault((1, method), [NOTHING] * len(all_views))
            row[column] = _method_text(view, method, view.headline)
            best |= {((1, method), column)} if method in top else set()
    order = {key: index for index, key in enumerate(sorted(rows))}
    return Table(
        slug="overview",
        title="Overview",
        caption="The main metric of every benchmark: mean over seeds [95 % interval], n seeds.",
        columns=("method", *(_heading(view) for view in all_views)),
        rows=tuple((name_text(key[1]), *rows[key]) for key in order),
        best=frozenset((order[key], column + 1) for key, column in best),
        notes=_bold_note(best),
    )


def _heading(view: BenchmarkView) -> str:
    if view.headline is None:
        return name_text(view.label)
    return f"{name_text(view.label)}: {name_text(view.headline)}"


def _method_text(view: BenchmarkView, method: str, metric: str | None) -> str:
    """The mean of a method, with its number of seeds, or why there is none."""
    measured = view.measured(method, metric) if metric else None
    failed = len(view.failed_of(method))
    if measured is None:
        return f"failed ({plural(failed, 'seed')})" if failed else "undefined"
    assert metric is not None
    return f"{mean_text(measured, view.unit(metric))}, n = {measured.seeds}"


def _results(view: BenchmarkView) -> Table:
    """The comparison of one benchmark."""
    metric = view.headline
    if metric is None:
        return _without_headline(view)
    unit = view.unit(metric)
    with_before = BEFORE + metric in view.entries
    with_against = view.against in view.methods and len(view.methods) > 1
    cost = view.cost if view.cost != metric else None
    columns = ["method", name_text(metric)]
    columns += [f"minus {name_text(view.against or '')}"] if with_against else []
    columns += ["before training", "gain"] if with_before else []
    columns += [name_text(cost)] if cost else []
    columns += ["seeds", "tasks a seed"]

    def method_row(method: str) -> tuple[str, ...]:
        measured = view.measured(method, metric)
        failed = len(view.failed_of(method))
        if measured is None:
            said = f"failed ({plural(failed, 'seed')})" if failed else "undefined"
            return (name_text(method), said, *[NOTHING] * (len(columns) - 2))
        row = [name_text(method), mean_text(measured, unit)]
        if with_against:
            row.append(difference_text(view.difference(method, metric), unit))
        if with_before:
            row.append(mean_text(view.measured(method, BEFORE + metric), unit))
            row.append(difference_text(view.gain(method, metric), unit))
        if cost:
            row.append(mean_text(view.measured(method, cost), view.unit(cost)))
        seeds = str(measured.seeds) + (f" ({failed} failed)" if failed else "")
        return (*row, seeds, tasks_text(measured))

    def reference_row(reference: Reference) -> tuple[str, ...]:
        measured = view.measured(None, reference.metric)
        filler = [NOTHING] * (len(columns) - 4)
        seeds = NOTHING if measured is None else str(measured.seeds)
        name, value = reference_name(reference), mean_text(measured, unit)
        return (name, value, *filler, seeds, tasks_text(measured))

    references = view.references(metric)
    rows = [reference_row(item) for item in references if item.kind == "floor"]
    first = len(rows)
    rows += [method_row(method) for method in view.methods]
    rows += [reference_row(item) for item in references if item.kind != "floor"]
    top = best_of(view, metric)
    best = {(first + index, 1) for index, method in enumerate(view.methods) if method in top}
    return Table(
        slug=f"comparison-{view.slug}",
        title=name_text(view.label),
        caption=_results_caption(view, metric, with_against=with_against, with_before=with_before),
        columns=tuple(columns),
        rows=tuple(rows),
        best=frozenset(best),
        notes=(*_bold_note(best), *_results_notes(view, with_against=with_against)),
    )


def _without_headline(view: BenchmarkView) -> Table:
    """A benchmark whose numbers are neither better nor worse, or whose cells all failed."""
    rows = []
    for method in view.methods:
        failed = len(view.failed_of(method))
        said = f"failed ({plural(failed, 'seed')})" if failed else "done"
        rows.append((name_text(method), said, str(len(view.of(method)))))
    return Table(
        slug=f"comparison-{view.slug}",
        title=name_text(view.label),
        caption="No metric here has a better direction, so nothing is ranked.",
        columns=("method", "status", "seeds"),
        rows=tuple(rows),
        notes=tuple(_failed_notes(view)),
    )


def _results_caption(
    view: BenchmarkView, metric: str, *, with_against: bool, with_before: bool
) -> str:
    unit, better = sentence_text(view.unit(metric)), BETTER[view.direction(metric)]
    text = (
        f"{name_text(metric)} ({unit}, {better}): mean over seeds "
        "[95 % interval over seeds, Student's t]."
    )
    if not (with_against or with_before):
        return text
    compared = [f"difference from {name_text(view.against or '')}"] if with_against else []
    compared += ["gain over the state before training"] if with_before else []
    return (
        f"{text} The {' and the '.join(compared)}: mean over pairs [95 % interval, bootstrap over "
        "pairs]; where pairs are tasks, how far training seeds differ is not in the interval."
    )


def _bold_note(best: Iterable[object]) -> tuple[str, ...]:
    return ("Bold: the best mean.",) if any(True for _ in best) else ()


def _results_notes(view: BenchmarkView, *, with_against: bool) -> list[str]:
    notes = []
    singles = [name_text(method) for method in view.methods if len(view.of(method)) == 1]
    if singles:
        notes.append(f"One seed only, so no interval over seeds: {', '.join(singles)}.")
    if view.against and not with_against and len(view.methods) > 1:
        notes.append(f"No differences: {name_text(view.against)} has no result here.")
    for method in view.methods:
        versions = sorted({str(cell.document["method"]["version"]) for cell in view.of(method)})
        if len(versions) > 1:
            listed = " and ".join(name_text(version) for version in versions)
            notes.append(f"{name_text(method)} mixes results of its versions {listed}.")
    return notes + _failed_notes(view)


def _failed_notes(view: BenchmarkView) -> list[str]:
    return [f"{name_text(cell.name)} failed: {failure_text(cell)}" for cell in view.failed]


def _failed(data: ReportData) -> Table:
    failed = [cell for cell in data.cells if not cell.ok]
    return Table(
        slug="failed",
        title="Failed cells",
        caption="No number of these is in any mean.",
        columns=("cell", "reason", "to run it again"),
        rows=tuple(
            (name_text(cell.name), failure_text(cell), sentence_text(cell.command))
            for cell in failed
        ),
    )


def _unusable(data: ReportData) -> Table:
    return Table(
        slug="unusable",
        title="Files that could not be used",
        caption="Nothing of these is in the report.",
        columns=("file", "reason"),
        rows=tuple((item.path, sentence_text(item.reason)) for item in data.problems),
    )


def _all_metrics(view: BenchmarkView) -> Table:
    """Every metric of every method that has results."""
    methods = [method for method in view.methods if view.of(method)]
    rows, best, reasons = [], set(), []
    for index, metric in enumerate(view.entries):
        unit = view.unit(metric)
        top = best_of(view, metric)
        texts = []
        for column, method in enumerate(methods):
            measured = view.measured(method, metric)
            texts.append("undefined" if measured is None else mean_text(measured, unit))
            best |= {(index, column + 3)} if method in top else set()
            reasons += _reasons(view.of(method), metric) if measured is None else []
        head = (name_text(metric), sentence_text(unit), _SHORT[view.direction(metric)])
        rows.append((*head, *texts))
    return Table(
        slug=f"metrics-{view.slug}",
        title=f"All metrics of {name_text(view.label)}",
        caption="Mean over seeds [95 % interval over seeds]; a single seed has no interval.",
        columns=("metric", "unit", "better", *(_with_seeds(view, name) for name in methods)),
        rows=tuple(rows),
        best=frozenset(best),
        notes=(*_bold_note(best), *reasons[:_MAX_REASONS]),
    )


def _with_seeds(view: BenchmarkView, method: str) -> str:
    return f"{name_text(method)} ({plural(len(view.of(method)), 'seed')})"


_SHORT = {"maximize": "higher", "minimize": "lower", "neutral": NOTHING}


def _reasons(cells: Sequence[CellData], metric: str) -> list[str]:
    """Why a metric is undefined, once a method."""
    for cell in cells:
        entry = cell.document["metrics"].get(metric)
        why = "not reported" if entry is None else sentence_text(entry.get("reason", "no reason"))
        return [f"{name_text(metric)} of {name_text(cell.method)} is undefined: {why}"]
    return []


def cells_table(data: ReportData) -> Table:
    """One row a cell, with what its run record measured; the only table that needs run records."""
    headlines = {}
    for view in views(data):
        headlines.update({cell.key: view for cell in (*view.cells, *view.failed)})
    rows = []
    for cell in data.cells:
        seconds = (cell.record or {}).get("durations", {}).get("total")
        memory = (cell.record or {}).get("peak_memory", {}).get("bytes")
        device = (cell.record or {}).get("device")
        rows.append(
            (
                name_text(cell.name),
                "ok" if cell.ok else "failed",
                _cell_text(cell, headlines[cell.key].headline),
                NOTHING if seconds is None else f"{seconds:.0f}",
                NOTHING if memory is None else f"{number(memory, 'bytes')} {prefix(memory)}",
                NOTHING if device is None else name_text(device),
            )
        )
    without = sum(cell.record is None for cell in data.cells)
    notes = []
    if any(cell.record is not None for cell in data.cells):
        notes.append(
            "Seconds and memory are those of the recorded runs, on the machines that they ran on; "
            "memory is the sum over a cell's processes, an upper bound."
        )
    if without:
        notes.append(f"No run record here for {without} of {plural(len(data.cells), 'cell')}.")
    return Table(
        slug="cells",
        title="Cells",
        caption="One run each: value ± standard error over tasks, and what its run record measured.",
        columns=("cell", "status", "result", "seconds", "peak memory", "device"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _cell_text(cell: CellData, metric: str | None) -> str:
    if not cell.ok:
        return failure_text(cell)
    entry = cell.document["metrics"].get(metric) if metric else None
    if metric is None or entry is None or entry["value"] is None:
        return "undefined"
    unit, value = entry["unit"], entry["value"]
    text = number(value, unit)
    if entry["stderr"] is not None:
        text += f" ± {number(entry['stderr'], unit, value)}"
    text += f" {prefix(value)}" if unit == "bytes" else ""
    return f"{name_text(metric)} {text}, n = {entry['n']}"
