"""Numbers and names as a report prints them, and the escapes that keep foreign names harmless.

Names, units and error messages come from files that somebody else may have written.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence

from harness.plain_text import visible

MAX_NAME = 60
"""Characters of one foreign name that a report shows."""
_MAX_SLUG = 60
_MARKDOWN = re.compile(r"[\\`*_{}\[\]()<>#+!|~&$@^:]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", ":": "&#58;", "|": "&#124;"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB")


def name_text(text: str) -> str:
    """A foreign name on one line, not too long, with nothing in it that acts on a reader."""
    return visible(text, MAX_NAME)


def sentence_text(text: str) -> str:
    """A foreign message on one line: line ends become blanks."""
    return visible(" ".join(text.split()))


def slug(text: str) -> str:
    """Lower-case letters, digits and ``-`` for a file name or an anchor; never empty."""
    made = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_MAX_SLUG].strip("-")
    return made or "unnamed"


def slugs(texts: Sequence[str]) -> list[str]:
    """One slug a text; texts that would share one get a hash of themselves behind it."""
    made = [slug(text) for text in texts]
    return [
        own if made.count(own) == 1 else f"{own}-{_tag(text)}"
        for own, text in zip(made, texts, strict=True)
    ]


def _tag(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def markdown(text: str) -> str:
    """Plain text that Markdown shows as it is, in a table cell, too: no link, mention or markup.

    What links by itself (``@``, ``:``, ``www.``) becomes entities: a backslash does not hold it.
    """
    escaped = _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), text)
    return re.sub(r"(?i)\b(www)\.", r"\1&#46;", escaped)


def markdown_code(text: str) -> str:
    """A line of code in Markdown, whatever backquotes it holds."""
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (ticks + 1)
    space = " " if ticks else ""
    return f"{fence}{space}{text}{space}{fence}"


def csv_text(text: str) -> str:
    """A text that no spreadsheet takes for a formula; numbers stay as they are."""
    if not text.startswith(_FORMULA) or _is_number(text):
        return text
    return "'" + text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def csv_number(value: float | None) -> str:
    """Six significant digits: the last bits of a mean differ between machines, a report must not."""
    return "" if value is None or not math.isfinite(value) else f"{value + 0.0:.6g}"


def number(value: float, unit: str, like: float | None = None) -> str:
    """A number as a table shows it.

    Args:
        value: Finite or infinite.
        unit: Shares get three decimals, bytes a binary prefix (without its name).
        like: The number whose prefix and decimals are taken, for ends of intervals.
    """
    like = value if like is None else like
    if not math.isfinite(value):
        return "inf" if value > 0 else "-inf"
    if unit == "bytes":
        power = _power(like)
        return _decimals(value / 1024**power, like / 1024**power)
    if unit == "share":
        return _no_minus_zero(f"{value:.3f}")
    return _decimals(value, like)


def prefix(value: float) -> str:
    """The name of the binary prefix that ``number`` uses for so many bytes."""
    return _BINARY[_power(value)]


def _power(value: float) -> int:
    size = abs(value)
    return next((p for p in range(len(_BINARY)) if size < 1024 ** (p + 1)), len(_BINARY) - 1)


def _decimals(value: float, like: float) -> str:
    """About four significant digits of ``like``."""
    size = abs(like)
    if size >= 1e6 or abs(value) >= 1e9 or 0 < size < 1e-3:
        return f"{value:.4g}"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    text = f"{value:.{digits}f}"
    if value == int(value) and like == int(like):
        text = f"{value:.0f}"
    return _no_minus_zero(text)


def _no_minus_zero(text: str) -> str:
    return text.removeprefix("-") if not text.strip("-0.") else text


def signed(text: str) -> str:
    """With a plus sign where it is above zero; ASCII, so that every format can hold it."""
    return text if text.startswith("-") or not text.strip("0.") else f"+{text}"
