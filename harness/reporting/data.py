"""What a report is made of: metrics documents, and beside each the run that gave it, if it is here.

Everything that reaches a page comes through here, so that a report of the same files is the same
bytes anywhere: no timestamp, host or absolute path. Seconds and bytes that a run record measured may
be shown, as what that run measured.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import results
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.collection import Problem

Key = tuple[str, str, int]
"""Method, benchmark, seed."""

# As the registry allows: a name from a stranger's file must not lead out of the runs directory.
_SAFE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")


@dataclass(frozen=True)
class CellData:
    """One cell's result, and its run if it is on this machine.

    Args:
        key: Method, benchmark, seed.
        document: The validated metrics document; ``status`` may be ``"failed"``.
        record: The run record; only of the very cell (its id is the document's) and if it ended ok.
        run_dir: The run's folder, to read further files from; given where ``record`` is. Not for
            rendering: it may be absolute.
        history: The learning curve, one update an entry; None without one.
        plugins: ``--plugin`` files as typed, for the command that runs the cell.
        suite: The suite that defines the method, if it is a variant: no other command knows it.
    """

    key: Key
    document: dict[str, Any]
    record: dict[str, Any] | None = None
    run_dir: Path | None = None
    history: list[dict[str, Any]] | None = None
    plugins: tuple[str, ...] = ()
    suite: str | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return self.key[0]

    @property
    def benchmark(self) -> str:
        """The benchmark's name."""
        return self.key[1]

    @property
    def seed(self) -> int:
        """The cell's seed."""
        return self.key[2]

    @property
    def ok(self) -> bool:
        """Whether the cell succeeded: a failed one has no metrics."""
        return bool(self.document["status"] == "ok")

    @property
    def name(self) -> str:
        """``<method>/<benchmark>-seed<N>``, as its metrics file is called."""
        return f"{self.method}/{self.benchmark}-seed{self.seed}"

    @property
    def command(self) -> str:
        """The command that runs this cell, to be pasted into a shell."""
        cell = ["--method", self.method, "--benchmark", self.benchmark, "--seed", str(self.seed)]
        if self.suite is not None:
            argv = ["auto-research", "reproduce", "--suite", self.suite, *cell]
        else:
            argv = ["auto-research", "agent-eval", *cell]
            for option in ("episodes", "updates"):
                if option in self.document["budget"]:
                    argv += [f"--{option}", str(self.document["budget"][option])]
        for plugin in self.plugins:
            argv += ["--plugin", plugin]
        return shlex.join(argv)

    def value(self, metric: str) -> float | None:
        """A metric's value; None where it is undefined, not reported, or the cell failed."""
        entry = self.document["metrics"].get(metric)
        return None if entry is None else entry["value"]


@dataclass(frozen=True)
class ReportData:
    """All that a report shows.

    Args:
        cells: Sorted by method, benchmark and seed; failed ones included.
        problems: Files that could not be used, metrics files and run records; shown in the report.
        metrics_shown: What the metrics directory is called in the report.
        runs_shown: What the runs directory is called; None if there is none here.
        against: The method that the others are compared with.
    """

    cells: list[CellData]
    problems: Sequence[Problem] = ()
    metrics_shown: str = "metrics"
    runs_shown: str | None = None
    against: str | None = None

    @property
    def methods(self) -> list[str]:
        """Names in order."""
        return sorted({cell.method for cell in self.cells})

    @property
    def benchmarks(self) -> list[str]:
        """Names in order."""
        return sorted({cell.benchmark for cell in self.cells})

    def of(self, method: str, benchmark: str) -> list[CellData]:
        """The successful cells of a pair, by seed."""
        return [
            cell
            for cell in self.cells
            if cell.ok and cell.method == method and cell.benchmark == benchmark
        ]


@dataclass(frozen=True)
class Table:
    """A table of plain text: whoever renders it escapes for the format.

    Args:
        slug: Part of file names and anchors: lower-case letters, digits and ``-``.
        title: Heading.
        caption: What the numbers are, in a sentence or two.
        columns: Headings.
        rows: Cells; each row is as long as ``columns``.
        best: (row, column) of the cells that are the best of their column or row, ties included.
        notes: Footnotes, one line each.
    """

    slug: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plot:
    """A picture in two formats.

    Args:
        slug: As in ``Table``.
        title: Heading.
        alt: What a person sees in it, for those who cannot.
        svg: File relative to the report's folder.
        png: File relative to the report's folder.
        caption: What is drawn, and what is missing and why.
    """

    slug: str
    title: str
    alt: str
    svg: str
    png: str
    caption: str = ""


@dataclass(frozen=True)
class PaperPoint:
    """A number that the paper gives for a sequence length.

    Args:
        quantity: ``"peak_bytes"`` or ``"seconds"``.
        method: The method here that it is about.
        tokens: The length.
        value: In bytes or seconds; None where the paper says that memory ran out.
    """

    quantity: str
    method: str
    tokens: int
    value: float | None


@dataclass(frozen=True)
class ClaimRow:
    """One claim of the paper, judged.

    Args:
        slug: The claim's id.
        claim: What the paper says, in a sentence.
        paper: The paper's value, as text.
        ours: What was measured, as text.
        measured: ``"CPU"``, ``"simulated"``, ``"CUDA"`` or ``"-"`` (nothing).
        verdict: ``"reproduced"``, ``"direction reproduced"``, ``"not reproduced"`` or
            ``"not testable here"``.
        rule: The rule in words, made from the data that was evaluated.
        reason: Why the rule gave this verdict, with the numbers.
        command: What shows it.
    """

    slug: str
    claim: str
    paper: str
    ours: str
    measured: str
    verdict: str
    rule: str
    reason: str
    command: str


@dataclass(frozen=True)
class ClaimsTable:
    """All claims of one paper.

    Args:
        paper: Title and reference.
        rows: One a claim, in the order of ``claims.toml``.
        points: The paper's numbers that plots show.
    """

    paper: str
    rows: tuple[ClaimRow, ...]
    points: tuple[PaperPoint, ...] = ()


def load_report_data(
    metrics_dir: Path,
    runs_dir: Path | None,
    *,
    against: str | None = None,
    plugins: Sequence[str] = (),
) -> ReportData:
    """Read all metrics files, and the runs that belong to them.

    A run record is used only if its cell id is the document's and it ended ok: a folder that holds
    another attempt says nothing about this result.

    Args:
        metrics_dir: ``<method>/<benchmark>-seed<N>.json`` files.
        runs_dir: Run folders; may be missing or None.
        against: Kept for the tables.
        plugins: Plugin files as typed, for the commands that are shown.

    Raises:
        UserError: If there is no metrics directory, or it holds no metrics file at all.
    """
    from harness.collection import load_collection

    try:
        collection = load_collection(metrics_dir)
    except UserError as error:
        raise UserError(error.message, hint=_NEXT, exit_code=error.exit_code) from error
    if not collection.documents and not collection.problems:
        raise UserError(
            f"{metrics_dir} holds no metrics file: there is nothing to show.", hint=_NEXT
        )
    runs = runs_dir if runs_dir is not None and runs_dir.is_dir() else None
    problems = [_renamed(problem, metrics_dir) for problem in collection.problems]
    cells = []
    suites = _suites_of_variants()
    for key, document in sorted(collection.documents.items()):
        cell, found = _with_run(key, document, runs, tuple(plugins))
        cells.append(replace(cell, suite=suites.get(key)))
        problems += found
    return ReportData(
        cells,
        tuple(problems),
        metrics_shown=shown_name(metrics_dir),
        runs_shown=None if runs is None else shown_name(runs),
        against=against,
    )


_NEXT = (
    "auto-research reproduce   # runs the suite and writes metrics/, or name another --metrics-dir"
)


def _suites_of_variants() -> dict[Key, str]:
    """The suite of each cell whose method is a variant; suites that cannot be read have none."""
    from harness.suite import load_suite, shipped_suites

    found: dict[Key, str] = {}
    for name in shipped_suites():
        try:
            suite = load_suite(name)
        except UserError:
            continue
        variants = {variant.name for variant in suite.variants}
        for cell in suite.cells():
            if cell.method in variants:
                found.setdefault((cell.method, cell.benchmark, cell.seed), name)
    return found


def shown_name(directory: Path) -> str:
    """A directory's last part: where it lies on this machine is nobody's business."""
    return directory.resolve().name or str(directory)


def _renamed(problem: Problem, metrics_dir: Path) -> Problem:
    for root in (metrics_dir, metrics_dir.resolve()):
        try:
            inside = Path(problem.path).relative_to(root)
        except ValueError:
            continue
        return replace(problem, path=str(Path(shown_name(metrics_dir)) / inside))
    return problem


def _with_run(
    key: Key, document: dict[str, Any], runs: Path | None, plugins: tuple[str, ...]
) -> tuple[CellData, list[Problem]]:
    """A cell with its run, and what of the run's files could not be read."""
    from harness.collection import Problem

    bare = CellData(key, document, plugins=plugins)
    method, benchmark, seed = key
    if runs is None or not (_SAFE_NAME.fullmatch(method) and _SAFE_NAME.fullmatch(benchmark)):
        return bare, []
    inside = Path(method) / f"{benchmark}-seed{seed}-{document['cell_id'][:12]}"
    run_dir = runs / inside
    shown = Path(shown_name(runs)) / inside
    try:
        record = results.read_run_record(run_dir / "run.json")
    except results.MissingResultError:
        return bare, []
    except results.ResultsError as error:
        newer = isinstance(error, results.NewerSchemaError)
        return bare, [Problem(str(shown / "run.json"), error.reason, newer)]
    if record["cell_id"] != document["cell_id"] or record["status"] != "ok":
        return bare, []
    history, problems = None, []
    try:
        lines = results.read_lines(run_dir / "history.jsonl")
        if not all(isinstance(line, Mapping) for line in lines):
            raise results.UnreadableResultError(None, "a line is not an object", "Run it again")
        history = lines
    except results.MissingResultError:
        pass
    except results.ResultsError as error:
        problems.append(Problem(str(shown / "history.jsonl"), error.reason))
    return CellData(key, document, record, run_dir, history, plugins), problems
