"""JSON as RFC 8259 means it, and one canonical way to write it.

Python's ``json`` accepts and writes ``NaN`` and ``Infinity``, keeps the last of two equal keys, and
turns ``1e999`` into infinity. Other readers then disagree about what a result file says, so none of
that is let through here, in either direction.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 64 * 1024 * 1024
"""Largest file that is read, in bytes: a result file is far below it, a wrong file may not be."""


class StrictJSONError(ValueError):
    """Text or data that strict JSON does not allow; the message is one sentence without a path."""


def _pointer(path: tuple[str | int, ...]) -> str:
    """A readable address inside a document, for example ``samples.reward[3]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the document"


def _plain(value: Any, path: tuple[str | int, ...]) -> Any:
    """Copy ``value`` into plain JSON types, refusing what has no exact JSON form."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise StrictJSONError(f"{_pointer(path)} holds a lone surrogate: {value!a}") from None
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StrictJSONError(f"{_pointer(path)} is {value}; JSON has finite numbers only")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise StrictJSONError(f"{_pointer(path)} has the key {key!r}; keys must be strings")
        return {_plain(key, path): _plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    raise StrictJSONError(
        f"{_pointer(path)} is a {type(value).__name__}; allowed are dict, list, tuple, str, int, "
        "float, bool and None"
    )


def dumps(document: Any) -> str:
    """The canonical text of a document: same data, same bytes.

    Sorted keys, two-space indent, shortest floats that round-trip, UTF-8 characters as they are, one
    newline at the end.

    Raises:
        StrictJSONError: If the data has no strict JSON form (NaN, infinity, keys that are not
            strings, other types).
    """
    plain = _plain(document, ())
    return json.dumps(plain, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def dump_lines(rows: Iterable[Any]) -> str:
    """JSON Lines: one compact canonical document a line.

    Raises:
        StrictJSONError: As :func:`dumps`.
    """
    return "".join(
        json.dumps(_plain(row, (index,)), sort_keys=True, ensure_ascii=False, allow_nan=False)
        + "\n"
        for index, row in enumerate(rows)
    )


def finite_or_none(value: Any) -> Any:
    """A copy in which every non-finite float, however deep, is None (for logs and curves)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_none(item) for item in value]
    return value


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise StrictJSONError(f"the key {key!r} appears twice in one object")
            seen.add(key)
    return document


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise StrictJSONError(f"the number {text[:40]} is too large for a 64-bit float")
    return value


def _no_constant(text: str) -> float:
    raise StrictJSONError(f"it holds {text}, which is not JSON")


# A number that no 64-bit float holds has 309 digits or an exponent of three. Looking for one in the
# text leaves all other documents to the C parser, which is several times as fast without hooks. What
# follows an exponent tells it from the middle of a hash, which every result file has.
_MAYBE_HUGE = re.compile(r"\d{300}|[eE]\+?\d{3,}(?![^\s,\]}])")
_LARGEST = int(sys.float_info.max)


def _bounded_int(text: str) -> int:
    value = int(text)
    if abs(value) > _LARGEST:
        raise StrictJSONError(f"the number {text[:40]} is too large for a 64-bit float")
    return value


def loads(text: str) -> Any:
    """Parse one strict JSON document.

    Raises:
        StrictJSONError: On a syntax error (truncation included), NaN or Infinity, a number that
            overflows a 64-bit float, a key that appears twice, or nesting too deep to be a result.
    """
    hooks: dict[str, Any] = {}
    if _MAYBE_HUGE.search(text):
        hooks = {"parse_float": _finite_float, "parse_int": _bounded_int}
    try:
        return json.loads(
            text, object_pairs_hook=_unique_pairs, parse_constant=_no_constant, **hooks
        )
    except StrictJSONError:
        raise
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        at_end = error.pos >= len(text.rstrip())
        truncated = "; the file ends too early" if at_end else ""
        raise StrictJSONError(f"it is not JSON ({error.msg} at {where}{truncated})") from None
    except RecursionError:
        raise StrictJSONError("it is nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise StrictJSONError(f"it holds a number that cannot be read ({error})") from None


def too_large(max_bytes: int = MAX_BYTES) -> str:
    """The reason that is given for a file above the bound."""
    return f"it is larger than {max_bytes} bytes, so it is no result file"


def read_bytes(path: Path, max_bytes: int = MAX_BYTES, *, follow: bool = True) -> bytes:
    """The content of a regular file of bounded size.

    Args:
        path: The file.
        max_bytes: Largest allowed size.
        follow: Whether ``path`` may be a symbolic link.

    Raises:
        OSError: If the file cannot be opened or read (``ELOOP`` for a link that is not followed).
        StrictJSONError: If it is no regular file or is too large.
    """
    # Non-blocking: opening a FIFO that nobody writes to must not hang the command.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise StrictJSONError(f"it is {kind}")
        if status.st_size > max_bytes:
            raise StrictJSONError(too_large(max_bytes))
        data = stream.read(max_bytes + 1)  # it may grow while it is read
    if len(data) > max_bytes:
        raise StrictJSONError(too_large(max_bytes))
    return data


def decode(data: bytes) -> str:
    """UTF-8 text of bytes.

    Raises:
        StrictJSONError: If they are not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJSONError(f"it is not UTF-8 (byte {error.start})") from None


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The UTF-8 text of a regular file of bounded size.

    Raises:
        OSError: If the file cannot be opened or read.
        StrictJSONError: If it is no regular file, is too large, or is not UTF-8.
    """
    return decode(read_bytes(path, max_bytes))
