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
_MARKDOWN = re.compile(
    r"(?P<interval>\[[-+]?[0-9][^\[\]]{0,80}\](?![(\[:]))"
    r"|[\\`*\[\]<|~&$]"
    r"|@(?![0-9])|(?<![A-Za-z0-9])@"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    r"|:(?=//)|:(?=[A-Za-z0-9_+-]+:)"
    r"|(?<=\b[Ww]{3})\."
)
_ENTITIES = {
    "&": "&amp;",
    "<": "&lt;",
    "@": "&#64;",
    ":": "&#58;",
    "|": "&#124;",
    ".": "&#46;",
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
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
    """Plain text that Markdown shows as it is inside a line: no link, mention, math or markup.

    What reads well stays as it is: an underscore inside a word, an interval in brackets. What links
    by itself becomes entities, since a backslash does not hold it.
    """
    return _MARKDOWN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    what = found[0]
    if found["interval"]:
        return "[" + _MARKDOWN.sub(_escaped, what[1:-1]) + "]"
    return _ENTITIES.get(what) or "\\" + what


def markdown_block(text: str) -> str:
    """``markdown`` for the start of a line, where more is markup: headings, lists, quotes."""
    return re.sub(r"^(\s*\d*)([-+=#.)>])", r"\1\\\2", markdown(text))


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


def decimal_bytes(value: float) -> str:
    """Bytes as the paper gives them: GB = 10^9 bytes, four significant digits."""
    size, name = next(((s, n) for s, n in _DECIMAL if abs(value) >= s), _DECIMAL[-1])
    return f"{value / size:.4g} {name}"


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


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the start of a row it would be an option of the line break before
    "]": "{]}",
} | {char: "\\" + char for char in "&%$#_{}"}


def latex(text: str) -> str:
    """Plain text that LaTeX sets as it is."""
    return "".join(_LATEX.get(char, char) for char in text)
