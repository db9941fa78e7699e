"""A whole report: from data to the files of a folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.reporting.claims import judge
from harness.reporting.claims_file import ClaimsFile, read_claims
from harness.reporting.data import ClaimsTable, Plot, ReportData, Table
from harness.reporting.formats import (
    LATEX_PACKAGES,
    claims_markdown,
    csv_table,
    latex_table,
    markdown_section,
    tidy_csv,
)
from harness.reporting.manifest import Written, write_files
from harness.reporting.plots import build_plots
from harness.reporting.tables import cells_table, comparison_tables
from harness.reporting.text import markdown, markdown_block

_PAGES = "harness.reporting.pages"


@dataclass(frozen=True)
class Rendering:
    """A report as it was written.

    Args:
        written: What became of the folder.
        missing: What there was no data for, one sentence each.
    """

    written: Written
    missing: tuple[str, ...]


def render(
    data: ReportData,
    output: Path,
    *,
    claims: ClaimsFile | None = None,
    overwrite: bool = False,
) -> Rendering:
    """Write a report of ``data`` to a folder; the same data give the same bytes.

    Args:
        data: What to show.
        output: The folder.
        claims: The paper's claims; by default those that come with the package.
        overwrite: Whether files that no report wrote may be replaced.

    Raises:
        UserError: If the folder cannot be written, or holds other files under these names.
    """
    judged = judge(data, read_claims() if claims is None else claims)
    tables = comparison_tables(data)
    cells = cells_table(data)
    plots = build_plots(data, judged.points)
    missing = (*plots.missing, *_missing_runs(data))
    files = {
        "comparison.md": _comparison(tables),
        "comparison.tex": _latex(tables),
        "comparison.csv": tidy_csv(data, headline_only=True),
        "metrics.csv": tidy_csv(data, headline_only=False),
        "cells.md": markdown_section(cells, level=1),
        "cells.csv": csv_table(cells),
        "claims.md": claims_markdown(judged),
        "overview.md": _overview(tables, plots.plots, judged, missing),
    }
    encoded = {name: text.encode("utf-8") for name, text in files.items()} | plots.files
    encoded |= _pages(data, output, [*tables, cells], plots.plots, judged)
    return Rendering(write_files(output, encoded, overwrite=overwrite), missing)


def _pages(
    data: ReportData,
    output: Path,
    tables: Sequence[Table],
    plots: Sequence[Plot],
    claims: ClaimsTable,
) -> Mapping[str, bytes]:
    """The pages for a browser."""
    if importlib.util.find_spec(_PAGES) is None:
        return {}
    pages = importlib.import_module(_PAGES)
    made: Mapping[str, bytes] = pages.write_pages(data, output, tables, plots, claims.rows)
    return made


def _missing_runs(data: ReportData) -> list[str]:
    """What cannot be shown of cells whose run folder is not here."""
    without = sum(cell.ok and cell.record is None for cell in data.cells)
    if not without:
        return []
    count = "every cell" if without == len(data.cells) else f"{without} of {len(data.cells)} cells"
    return [
        f"Seconds, memory, environment, curves and trajectories of {count}: their run folders are "
        "not here (a clone has metrics only)."
    ]


def _comparison(tables: Sequence[Table]) -> str:
    head = (
        "# Comparison\n\n"
        "Rendered from metrics files by `auto-research report`. Numbers in brackets are 95 % "
        "intervals.\n"
    )
    return "\n".join([head, *map(markdown_section, tables)])


def _latex(tables: Sequence[Table]) -> str:
    packages = "".join(f"% \\usepackage{{{name}}}\n" for name in LATEX_PACKAGES)
    return f"% Rendered by auto-research report; needs\n{packages}\n" + "\n".join(
        map(latex_table, tables)
    )


def _overview(
    tables: Sequence[Table], plots: Sequence[Plot], claims: ClaimsTable, missing: Sequence[str]
) -> str:
    """The page that GitHub can show: what is here, the comparison, the pictures, what is not here."""
    verdicts: dict[str, int] = {}
    for row in claims.rows:
        verdicts[row.verdict] = verdicts.get(row.verdict, 0) + 1
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    parts = [
        "# Report\n",
        f"- [claims.md](claims.md): the paper's claims beside ours ({counted})\n"
        "- [comparison.md](comparison.md): all methods on all metrics, also as "
        "[CSV](comparison.csv) and [LaTeX](comparison.tex); every metric as [CSV](metrics.csv)\n"
        "- [cells.md](cells.md): every cell, also as [CSV](cells.csv)\n",
    ]
    parts += [
        markdown_section(table)
        for table in tables
        if table.slug.startswith(("overview", "comparison", "failed", "unusable"))
    ]
    for plot in plots:
        parts.append(
            f"## {markdown(plot.title)}\n\n![{markdown(plot.alt)}]({plot.svg})\n\n"
            f"{markdown_block(plot.caption)}\n"
        )
    if missing:
        parts.append("## Not here\n\n" + "".join(f"- {markdown(item)}\n" for item in missing))
    return "\n".join(parts)
