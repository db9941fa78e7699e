"""Tables as Markdown, LaTeX and CSV, laid out by pandas; all text is escaped for its format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.reporting.claims import claims_grid
from harness.reporting.data import ClaimsTable, ReportData, Table
from harness.reporting.measures import BenchmarkView, views
from harness.reporting.tables import best_of
from harness.reporting.text import (
    csv_number,
    csv_text,
    latex,
    markdown,
    markdown_block,
    markdown_code,
    name_text,
    sentence_text,
)

LATEX_PACKAGES = ("booktabs", "graphicx")
_TIDY_COLUMNS = (
    "benchmark",
    "metric",
    "unit",
    "direction",
    "player",
    "kind",
    "seeds",
    "failed_seeds",
    "tasks_a_seed",
    "mean",
    "low",
    "high",
    "best",
    "against",
    "difference",
    "difference_low",
    "difference_high",
    "pairs",
    "paired_by",
)


def markdown_table(table: Table) -> str:
    """The grid alone, for GitHub and everything else that knows pipe tables."""
    frame = _frame(table, markdown, lambda text: f"**{text}**")
    frame.columns = [markdown(heading) for heading in table.columns]
    aligned = ["left", *["right" if _is_numeric(table, i) else "left" for i in _others(table)]]
    text: str = frame.to_markdown(
        index=False, tablefmt="pipe", disable_numparse=True, colalign=aligned
    )
    return text + "\n"


def markdown_section(table: Table, *, level: int = 2) -> str:
    """Heading, caption, grid and notes."""
    parts = [f"{'#' * level} {markdown(table.title)}\n", markdown_block(table.caption) + "\n"]
    parts.append(markdown_table(table))
    if table.notes:
        parts.append("".join(f"- {markdown_block(note)}\n" for note in table.notes))
    return "\n".join(parts)


def claims_markdown(claims: ClaimsTable) -> str:
    """The table of claims, then each claim's rule, why it gave its verdict, and the command."""
    parts = [markdown_section(claims_grid(claims), level=1), "## How each was judged\n"]
    for row in claims.rows:
        parts.append(
            f"### {markdown(row.slug)}: {row.verdict}\n\n"
            f"{markdown_block(sentence_text(row.claim))}\n\n"
            f"- rule: {markdown(row.rule)}\n"
            f"- why: {markdown(row.reason)}\n"
            f"- to see it: {markdown_code(sentence_text(row.command))}\n"
        )
    return "\n".join(parts)


def latex_table(table: Table) -> str:
    """A ``table`` environment with booktabs rules.

    Needs the packages of ``LATEX_PACKAGES``; notes stand below the grid.
    """
    frame = _frame(table, latex, lambda text: f"\\textbf{{{text}}}")
    headings = [latex(heading) for heading in table.columns]
    styler = frame.style.hide(axis="index").format_index(lambda i: headings[i], axis="columns")
    letters = "l" + "".join("r" if _is_numeric(table, i) else "l" for i in _others(table))
    grid: str = styler.to_latex(hrules=True, column_format=letters)
    notes = "".join(f"\\par {latex(note)}\n" for note in table.notes)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{latex(table.title)}. {latex(table.caption)}}}\n"
        f"\\label{{tab:{table.slug}}}\n"
        f"\\resizebox{{\\linewidth}}{{!}}{{%\n{grid.rstrip()}%\n}}\n{notes}\\end{{table}}\n"
    )


def csv_table(table: Table) -> str:
    """The table as it is shown, for spreadsheets."""
    frame = _frame(table, csv_text, lambda text: text)
    text: str = frame.to_csv(
        index=False, header=[csv_text(name) for name in table.columns], lineterminator="\n"
    )
    return text


def _frame(table: Table, escape: Callable[[str], str], bold: Callable[[str], str]) -> Any:
    import pandas as pd

    cells = [
        [
            bold(escape(text)) if (row, column) in table.best else escape(text)
            for column, text in enumerate(texts)
        ]
        for row, texts in enumerate(table.rows)
    ]
    return pd.DataFrame(cells, columns=range(len(table.columns)), dtype=object)


def _others(table: Table) -> range:
    return range(1, len(table.columns))


def _is_numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers only, so that they should stand below each other."""
    texts = [row[column] for row in table.rows]
    return bool(texts) and all(text[:1] in "+-0123456789" for text in texts)


def tidy_csv(data: ReportData, *, headline_only: bool) -> str:
    """One row a (benchmark, metric, player), numbers in columns of their own.

    Args:
        data: The report's.
        headline_only: Only each benchmark's main metric; then with its floors and ceilings.
    """
    import pandas as pd

    rows: list[tuple[str, ...]] = []
    for view in views(data):
        metrics = [view.headline] if headline_only else list(view.entries)
        for metric in metrics:
            if metric is not None:
                rows += _tidy_rows(view, metric, with_references=headline_only)
    frame = pd.DataFrame(rows, columns=_TIDY_COLUMNS, dtype=object)
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def _tidy_rows(
    view: BenchmarkView, metric: str, *, with_references: bool
) -> Sequence[tuple[str, ...]]:
    best = best_of(view, metric)
    players: list[tuple[str | None, str, str, str]] = [
        (method, method, "method", metric) for method in view.methods
    ]
    if with_references:
        references = view.references(metric)
        players += [(None, item.player, item.kind, item.metric) for item in references]
    rows = []
    for method, player, kind, measured_metric in players:
        found = view.measured(method, measured_metric)
        interval = None if found is None else found.interval
        differs = None if method is None else view.difference(method, metric)
        ends = None if differs is None else differs.interval
        words = (view.label, metric, view.unit(metric), view.direction(metric), player)
        rows.append(
            (
                *(csv_text(sentence_text(word)) for word in words),
                kind,
                "0" if found is None else str(found.seeds),
                "0" if method is None else str(len(view.failed_of(method))),
                "" if found is None else " to ".join(str(n) for n in sorted(set(found.tasks))),
                csv_number(None if found is None else found.mean),
                csv_number(None if interval is None else interval.low),
                csv_number(None if interval is None else interval.high),
                "1" if method in best else "0",
                "" if ends is None else csv_text(name_text(view.against or "")),
                csv_number(None if ends is None else ends.mean),
                csv_number(None if ends is None else ends.low),
                csv_number(None if ends is None else ends.high),
                "" if ends is None else str(ends.n),
                "" if differs is None else differs.by,
            )
        )
    return rows
