"""Validation against the committed JSON Schemas, fast enough for a gate over thousands of files.

What is valid is nearly always seen by :mod:`harness.schema_quick`; jsonschema judges and explains the
rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from harness.schema_quick import quick_check

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_SHOWN_CHARACTERS = 120


def load_schema(kind: str, version: int) -> dict[str, Any]:
    """The committed schema of ``kind`` (``"metrics"`` or ``"run"``)."""
    name = f"{kind}-v{version}.schema.json"
    text = resources.files("harness").joinpath("schemas", name).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def _validator(kind: str, version: int) -> Validator:
    """One validator a schema and process; importing jsonschema waits until something is checked."""
    from jsonschema import Draft202012Validator

    schema = load_schema(kind, version)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@cache
def _quick(kind: str, version: int) -> Callable[[Any], bool]:
    return quick_check(load_schema(kind, version))


def first_violation(document: Any, kind: str, version: int) -> str | None:
    """What a schema does not allow in ``document``, most relevant first, or None.

    Returns:
        A sentence without a full stop that begins with the address of the offending value.
    """
    if _quick(kind, version)(document):
        return None
    from jsonschema.exceptions import best_match

    validator = _validator(kind, version)
    if validator.is_valid(document):
        return None
    error = best_match(validator.iter_errors(document))
    assert error is not None
    where = ".".join(str(part) for part in error.absolute_path) or "the document"
    message = error.message
    if len(message) > _SHOWN_CHARACTERS:
        message = message[: _SHOWN_CHARACTERS // 2] + " ... " + message[-_SHOWN_CHARACTERS // 2 :]
    return f"{where} breaks the {kind} schema: {message}"
