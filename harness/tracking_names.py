"""Names that MLflow accepts, without two of ours becoming one of its (verl#119).

MLflow takes letters, digits, ``_ - . /`` and space, up to 250 characters, in names that are also
clean relative paths. Replacing other characters by one stand-in would merge ``r/mean@1`` with a
metric that is really called ``r/mean_at_1``, so the encoding here can be inverted.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable

MAX_KEY_CHARACTERS = 250
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./ ")
_ESCAPE = re.compile(r"_x([0-9a-f]+)_")
_EMPTY = "_x_"


def _escape(char: str) -> str:
    return f"_x{ord(char):x}_"


def encode_name(name: str) -> str:
    """A metric or parameter name for MLflow, from which :func:`decode_name` gives ours back.

    A character that MLflow refuses becomes ``_x<code point in hex>_``. A ``_`` before an ``x`` is
    escaped too, so that no name of ours looks like an escape. Where the name is no clean relative
    path (``a//b``, ``../a``), its slashes and dots are escaped. No length limit is applied here.
    """
    if not name:
        return _EMPTY
    clean = posixpath.normpath(name) == name and not name.startswith(("/", ".")) and name != "."
    refused = "" if clean else "/."
    parts = []
    for index, char in enumerate(name):
        escape_like = char == "_" and name[index + 1 : index + 2] == "x"
        plain = char in _PLAIN and char not in refused and not escape_like
        parts.append(char if plain else _escape(char))
    return "".join(parts)


def decode_name(key: str) -> str:
    """The name that :func:`encode_name` turned into ``key``."""
    if key == _EMPTY:
        return ""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), key)


def mlflow_keys(
    names: Iterable[str], *, prefix: str = "", taken: Iterable[str] = ()
) -> dict[str, str]:
    """One MLflow key a name; no two names share one, nor one of ``taken``.

    Databases may compare keys without regard to case, so keys that differ only in case count as
    equal here. A key that is too long, or taken, is cut and ends in a hash of its name.

    Args:
        names: Our names; duplicates count once.
        prefix: Put before every key, for example ``"train/"``.
        taken: Keys already in use.

    Returns:
        name -> key, in sorted order of the names, so that the keys do not depend on input order.
    """
    used = {key.casefold() for key in taken}
    keys: dict[str, str] = {}
    for name in sorted(set(names)):
        key = prefix + encode_name(name)
        if len(key) > MAX_KEY_CHARACTERS or key.casefold() in used:
            tag = hashlib.sha256(f"{prefix}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()
            key = f"{key[:200]}_xh{tag[:16]}"  # h is no hex digit: no escape looks like this
        used.add(key.casefold())
        keys[name] = key
    return keys
