"""``auto-research list``: what can be run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from harness.builtins import registries
from harness.cli.options import PathType
from harness.registry import Entry


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

    Nothing but plugin files is imported, so this is instant and shows parts whose extra is missing.
    """
    known = registries(plugins)
    kinds: list[tuple[str, Iterable[Entry[Any]]]] = [
        ("methods", known.methods),
        ("benchmarks", known.benchmarks),
    ]
    if as_json:
        from harness.strict_json import dumps

        rows = {kind: [_row(entry) for entry in entries] for kind, entries in kinds}
        click.echo(dumps(rows), nl=False)
        return
    for kind, entries in kinds:
        _print_table(kind, [_row(entry) for entry in entries])


def _row(entry: Entry[Any]) -> dict[str, str]:
    return {
        "name": entry.name,
        "version": entry.version,
        "origin": entry.origin,
        "target": entry.target,
        "description": entry.description,
    }


def _print_table(title: str, rows: list[dict[str, str]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from harness.cli.display import stdout_console

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in (title, "version", "origin", "what it is"):
        table.add_column(column, overflow="fold", no_wrap=column in {title, "version"})
    for row in rows:
        cells = (row["name"], row["version"], row["origin"], row["description"])
        table.add_row(*map(escape, cells))
    console = stdout_console()
    console.print(table)
    console.print()
