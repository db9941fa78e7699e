"""``auto-research track``: bring finished runs into MLflow, later or elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from harness.cli.options import PathType
from harness.errors import EXIT_FAILED, UserError


@click.group()
def track() -> None:
    """Mirror finished runs to MLflow."""


def _find_runs(paths: Sequence[Path]) -> list[Path]:
    """Folders with a mirror request, at or below ``paths``, in sorted order."""
    from harness.tracking_request import REQUEST_NAME

    found: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise UserError(
                f"{path} is not a directory.",
                hint="Give the folder of a run, or one that holds runs (default: runs).",
            )
        found.update(request.parent for request in path.rglob(REQUEST_NAME))
    return sorted(found)


@track.command()
@click.argument("paths", nargs=-1, type=PathType())
@click.option(
    "--tracking-uri",
    metavar="URI",
    help="Store to mirror to [default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db].",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds to wait for each run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def sync(paths: tuple[Path, ...], tracking_uri: str | None, timeout: float, as_json: bool) -> None:
    """Mirror the runs in PATHS (default: runs) that MLflow does not have yet.

    Runs that are in the store already are left as they are, so this can be repeated.
    """
    from harness.tracking import check_tracking_uri, replay_all

    check_tracking_uri(tracking_uri)
    runs = _find_runs(paths or (Path("runs"),))
    if not runs:
        raise UserError(
            "There is nothing to mirror: no mirror.json below the given folders.",
            hint="Run a cell first: auto-research agent-eval --help",
        )
    outcomes = replay_all(runs, tracking_uri, timeout=timeout)
    if as_json:
        rows = [
            {"run_dir": str(run), "ok": done.ok, "run_id": done.run_id, "message": done.message}
            for run, done in zip(runs, outcomes, strict=True)
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for run, done in zip(runs, outcomes, strict=True):
            click.echo(f"{run}: {done.message}" if done.ok else done.message, err=not done.ok)
    if not all(done.ok for done in outcomes):
        raise click.exceptions.Exit(EXIT_FAILED)
