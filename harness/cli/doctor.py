"""``auto-research doctor``: what is installed, what works, and what to type to get the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.options import PathType
from harness.errors import EXIT_FAILED

if TYPE_CHECKING:
    from harness.checks import Finding

_STYLES = {"ok": "green", "missing": "yellow", "fail": "red"}


@click.command()
@click.option("--metrics-dir", type=PathType(), default=Path("metrics"), show_default=True)
@click.option("--runs-dir", type=PathType(), default=Path("runs"), show_default=True)
@click.option("--tracking-uri", metavar="URI", help="MLflow store to look for.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(metrics_dir: Path, runs_dir: Path, tracking_uri: str | None, as_json: bool) -> None:
    """Say what is installed, what works, and what to type to get the rest.

    Takes a few seconds (it starts torch as a worker would). Exit code 0 if the core works, 1 if not;
    a missing extra, CUDA or tracking store is no failure.
    """
    from harness import checks

    findings = [
        *checks.packages(),
        checks.search_index(),
        *checks.numerics(),
        *checks.folders((("--metrics-dir", metrics_dir), ("--runs-dir", runs_dir))),
        checks.tracking_store(tracking_uri),
    ]
    works = all(finding.status != "fail" for finding in findings)
    if as_json:
        from harness.strict_json import dumps

        document = {"ok": works, "findings": [asdict(finding) for finding in findings]}
        click.echo(dumps(document), nl=False)
    else:
        _print(findings, works)
    if not works:
        raise click.exceptions.Exit(EXIT_FAILED)


def _print(findings: Sequence[Finding], works: bool) -> None:
    area = ""
    width = max(len(finding.name) for finding in findings if finding.area != "mlflow")
    for finding in findings:
        if finding.area != area:
            area = finding.area
            click.secho(area, bold=True)
        mark = click.style(f"{finding.status:<7}", fg=_STYLES[finding.status])
        click.echo(f"  {mark} {finding.name:<{width}}  {finding.detail}")
        if finding.fix:
            click.echo(f"          -> {finding.fix}")
    click.echo()
    failed = [finding.name for finding in findings if finding.status == "fail"]
    click.echo("The core works." if works else f"The core does not work: {', '.join(failed)}.")
