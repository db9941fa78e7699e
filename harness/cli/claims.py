"""``auto-research claims``: the paper's claims beside what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.options import PathType
from harness.cli.report import say_problems

if TYPE_CHECKING:
    from harness.reporting.data import ClaimsTable


@click.command("claims")
@click.option(
    "--metrics-dir",
    type=PathType(),
    default=Path("metrics"),
    show_default=True,
    help="Results: DIR/<method>/<benchmark>-seed<N>.json.",
)
@click.option(
    "--runs-dir",
    type=PathType(),
    default=Path("runs"),
    show_default=True,
    help="Run folders, which say on what device a cell ran; may be missing.",
)
@click.option(
    "--claims",
    "claims_file",
    type=PathType(),
    metavar="FILE",
    help="The paper's claims.  [default: those that come with the package]",
)
@click.option(
    "--format",
    "how",
    type=click.Choice(["table", "markdown", "json"]),
    default="table",
    show_default=True,
    help="A table for people, Markdown with every rule, or JSON.",
)
@click.pass_context
def claims(
    ctx: click.Context,
    /,
    metrics_dir: Path,
    runs_dir: Path,
    claims_file: Path | None,
    how: str,
) -> None:
    """Set the paper's claims beside what was measured.

    A verdict is never typed in: each claim has a rule, evaluated over the results. A claim that does
    not hold is a result, not an error of this command.

    \b
    Exit codes: 0 done, 2 usage, 4 done, but some files could not be read.
    """
    from harness.reporting.claims import claims_document, judge
    from harness.reporting.claims_file import read_claims
    from harness.reporting.data import load_report_data

    content = read_claims(claims_file)
    data = load_report_data(metrics_dir, runs_dir)
    judged = judge(data, content)
    if how == "json":
        from harness.strict_json import dumps

        click.echo(dumps(claims_document(judged, data.problems)), nl=False)
    elif how == "markdown":
        from harness.reporting.formats import claims_markdown

        click.echo(claims_markdown(judged), nl=False)
    else:
        _print_table(judged)
    ctx.exit(say_problems(data))


def _print_table(judged: ClaimsTable) -> None:
    from rich.markup import escape
    from rich.table import Table

    from harness.cli.display import stdout_console
    from harness.reporting.text import sentence_text

    colours = {
        "reproduced": "green",
        "direction reproduced": "yellow",
        "not reproduced": "red",
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), header_style="bold")
    for heading in ("claim", "paper", "ours", "measured", "verdict"):
        table.add_column(heading, overflow="fold", ratio=3 if heading == "claim" else None)
    for row in judged.rows:
        texts = (row.claim, row.paper, row.ours, row.measured)
        verdict = f"[{colours.get(row.verdict, 'dim')}]{row.verdict}[/]"
        table.add_row(*(escape(sentence_text(text)) for text in texts), verdict)
    console = stdout_console()
    console.print(sentence_text(judged.paper), style="bold", markup=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)
    console.out("Rules and reasons: auto-research claims --format markdown", highlight=False)
