"""Texts without this machine's paths: error messages of a metrics file are compared elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.provenance import code_root

_SCHEME = re.compile(r"\b[A-Za-z][\w+.-]*:/{2,3}(?=/)")
_QUOTED = re.compile(r"(['\"`])(/[^'\"`\n]*/[^'\"`\n]+)\1")
# Two parts at least: "/s" is a unit. Not after a word or "/" (https://host/page, and/or).
_BARE = re.compile(r"(?<![\w.>/-])/(?!/)[\w.@+=,%~-]+(?:/+[\w.@+=,%~-]+)+/?")


def scrub_paths(text: str, known: Mapping[Path, str]) -> str:
    """Replace absolute paths by placeholders.

    Args:
        text: Any text.
        known: Folder or file -> placeholder, for example ``{cell_dir: "<cell>"}``; the longest path
            that fits wins. The current, the home, the code's and Python's folders are added.

    Returns:
        The text with known folders as their placeholders, and every other thing that looks like an
        absolute path as ``<path>/its-last-part``.
    """
    places = {
        Path(sys.prefix): "<python>",
        Path(sys.base_prefix): "<python>",
        Path(os.path.expanduser("~")): "<home>",
        code_root(): "<code>",
        Path.cwd(): "<cwd>",
    }
    for path, name in known.items():
        places |= {path.resolve(): name, path.absolute(): name}
    text = _SCHEME.sub("", text)
    for path in sorted(places, key=lambda place: len(str(place)), reverse=True):
        if len(path.parts) > 1:  # not the root itself
            text = re.sub(rf"(?<![\w.-]){re.escape(str(path))}(?![\w-])", places[path], text)
    text = _QUOTED.sub(lambda match: f"{match[1]}{_last(match[2])}{match[1]}", text)
    return _BARE.sub(lambda match: _last(match[0]), text)


def _last(path: str) -> str:
    return f"<path>/{path.rstrip('/').rpartition('/')[2]}"
