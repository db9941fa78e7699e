"""``auto-research list``: what can be run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from harness.builtins import registries
from harness.cli.options import PathType
from harness.errors import RegistryError
from harness.plain_text import visible
from harness.registry import Entry, Registry


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    type=PathType(),
    help="Also load methods and benchmarks from a Python file (repeatable).",
)
def list_(as_json: bool, plugins: tuple[Path, ...]) -> None:
    """Show methods and benchmarks with version, origin and one line each.

    Nothing is imported but plugin files and the parts of installed packages, so this is instant and
    shows built-in parts whose extra is missing. An installed part that cannot be used is listed with
    the reason.
    """
    known = registries(plugins)
    rows = {"methods": _rows(known.methods), "benchmarks": _rows(known.benchmarks)}
    if as_json:
        from harness.strict_json import dumps

        click.echo(dumps(rows), nl=False)
        return
    for title, found in rows.items():
        _print_table(title, found)
    for error in (row["error"] for found in rows.values() for row in found):
        if error is not None:
            click.secho("Not usable: ", fg="red", bold=True, nl=False)
            click.echo(visible(error, 1000))


def _rows(registry: Registry[Any]) -> list[dict[str, str | None]]:
    return [_row(registry, entry) for entry in registry]


def _row(registry: Registry[Any], entry: Entry[Any]) -> dict[str, str | None]:
    error = None
    try:
        entry = registry.resolved(entry.name)
    except RegistryError as problem:
        error = problem.message
    return {
        "name": entry.name,
        "version": entry.version,
        "origin": entry.origin,
        "target": entry.target,
        "description": entry.description,
        "error": error,
    }


def _print_table(title: str, rows: Iterable[dict[str, str | None]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from harness.cli.display import stdout_console

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in (title, "version", "origin", "what it is"):
        table.add_column(column, overflow="fold", no_wrap=column in {title, "version"})
    for row in rows:
        said = "cannot be used, see below" if row["error"] else row["description"]
        cells = (row["name"], row["version"] or "?", row["origin"], said)
        table.add_row(*(escape(visible(cell or "")) for cell in cells))
    console = stdout_console()
    console.print(table)
    console.print()
