"""``auto-research report``: render tables, plots and pages from results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.options import PathType
from harness.errors import EXIT_OK, EXIT_UNREADABLE, UserError

if TYPE_CHECKING:
    from harness.reporting.data import ReportData
    from harness.reporting.render import Rendering

DEFAULT_AGAINST = "eager-attention"


@click.command("report")
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
    help="Run folders, for curves, times and trajectories; may be missing.",
)
@click.option(
    "--output",
    type=PathType(),
    default=Path("reports"),
    show_default=True,
    help="Where the report goes; other files there are left alone.",
)
@click.option(
    "--against",
    metavar="METHOD",
    default=DEFAULT_AGAINST,
    show_default=True,
    help="The method that the others are compared with.",
)
@click.option(
    "--claims",
    "claims_file",
    type=PathType(),
    metavar="FILE",
    help="The paper's claims.  [default: those that come with the package]",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    type=PathType(),
    help="Shown in the commands that run a cell; nothing is loaded (repeatable).",
)
@click.option("--overwrite", is_flag=True, help="Replace files there that no report wrote.")
@click.pass_context
def report(
    ctx: click.Context,
    /,
    metrics_dir: Path,
    runs_dir: Path,
    output: Path,
    against: str,
    claims_file: Path | None,
    plugins: tuple[Path, ...],
    overwrite: bool,
) -> None:
    """Render tables, plots, the paper's claims and pages from results.

    The same results give the same bytes. Without run folders (a clone has none) everything that
    metrics files hold is rendered, and the rest is named.

    \b
    Exit codes: 0 done, 2 usage, 4 rendered, but some files could not be read.
    """
    from harness.reporting.claims_file import read_claims
    from harness.reporting.data import load_report_data
    from harness.reporting.render import render

    claims = read_claims(claims_file)
    if output.exists() and not output.is_dir():
        raise UserError(
            f"--output {output} is not a directory.", hint="Give a folder; it is made if missing."
        )
    for source in (metrics_dir, runs_dir):
        _check_apart(output, source)
    data = load_report_data(
        metrics_dir, runs_dir, against=against, plugins=[str(plugin) for plugin in plugins]
    )
    is_typed = ctx.get_parameter_source("against") is click.core.ParameterSource.COMMANDLINE
    if is_typed and against not in data.methods:
        raise _unknown_method(against, data)
    rendering = render(data, output, claims=claims, overwrite=overwrite)
    _say(data, rendering, output)
    ctx.exit(say_problems(data))


def _check_apart(output: Path, source: Path) -> None:
    """A report among results would be taken for one."""
    if output.resolve().is_relative_to(source.resolve()):
        raise UserError(
            f"--output {output} lies in {source}, where results are read from.",
            hint="Give a folder of its own, such as reports.",
        )


def _unknown_method(against: str, data: ReportData) -> UserError:
    from harness.reporting.text import name_text

    names = ", ".join(map(name_text, data.methods)) or "none"
    return UserError(
        f"--against {against!r} has no result in {data.metrics_shown}; methods there: {names}.",
        hint="Leave --against out to compare with eager-attention where it has results.",
    )


def _say(data: ReportData, rendering: Rendering, output: Path) -> None:
    written = rendering.written
    failed = sum(not cell.ok for cell in data.cells)
    cells = f"{len(data.cells)} cells" + (f", {failed} of them failed" if failed else "")
    counts = f"{len(written.changed)} written" if written.changed else "all up to date"
    if written.removed:
        counts += f", {len(written.removed)} removed"
    click.echo(f"{output}: {len(written.files)} files of {cells} ({counts})")
    for name in _entry_points(written.files):
        click.echo(f"  {output / name}")
    for name in written.kept:
        click.echo(f"Kept, since somebody has changed it: {output / name}", err=True)
    for item in rendering.missing:
        click.echo(f"Not there: {item}", err=True)


def _entry_points(files: tuple[str, ...]) -> list[str]:
    return [name for name in ("index.html", "overview.md", "claims.md") if name in files]


def say_problems(data: ReportData) -> int:
    """Name the files that could not be used on stderr; the exit code that they give."""
    from harness.reporting.text import sentence_text

    for problem in data.problems:
        click.echo(f"Not used: {problem.path}: {sentence_text(problem.reason)}.", err=True)
    return EXIT_UNREADABLE if data.problems else EXIT_OK
