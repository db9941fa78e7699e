"""Texts of unknown origin, made fit to be shown on one line."""

from __future__ import annotations

MAX_SHOWN = 300
"""Characters of one foreign text that are shown; a file may hold megabytes in a name."""


def visible(text: str, limit: int = MAX_SHOWN) -> str:
    """A text in which nothing acts on a terminal, a log or a reader's eye.

    Line ends, control and escape characters, bidirectional overrides, zero-width characters and
    lone surrogates (undecodable bytes of a file name) become their Python escapes.

    Args:
        text: Any text.
        limit: Longest result, in characters of ``text``; the rest becomes ``...``.
    """
    cut = text if len(text) <= limit else text[:limit] + "..."
    if cut.isprintable():
        return cut
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in cut
    )
