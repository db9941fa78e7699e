"""Types of option values, with errors that say what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.spec import MAX_SEED


class WholeNumber(click.IntRange):
    """An integer from ``minimum`` on; the help shows no upper limit that nobody would reach."""

    def __init__(self, minimum: int) -> None:
        super().__init__(min=minimum)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click's, with errors in plain words."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number written in digits, such as 1000.", param, ctx)
        number = super().convert(value, param, ctx)
        if number > MAX_SEED:
            self.fail(f"{number} is too large; the largest allowed is {MAX_SEED}.", param, ctx)
        return number


class PathType(click.Path):
    """A path; an empty one is refused, since it would silently mean the current directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click's, but for ``''``."""
        if value == "":
            self.fail("'' is empty; give a path (. is the current directory).", param, ctx)
        return super().convert(value, param, ctx)
