"""Validation against the committed JSON Schemas, fast enough for a gate over thousands of files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "string": (str,),
    "null": (type(None),),
}
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
    from jsonschema import Draft202012Validator, validators

    slow_items = Draft202012Validator.VALIDATORS["items"]

    def items(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
        """``items`` with a short cut: long columns of plain scalars, where nearly all time goes."""
        if isinstance(instance, list) and isinstance(rule, dict) and set(rule) == {"type"}:
            names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
            if all(name in _PYTHON_TYPES for name in names):
                # Exact types: bool is an int to isinstance, and not a number to JSON.
                allowed = {kind for name in names for kind in _PYTHON_TYPES[name]}
                if set(map(type, instance)) <= allowed:
                    return
        yield from slow_items(validator, rule, instance, schema) or ()

    schema = load_schema(kind, version)
    Draft202012Validator.check_schema(schema)
    make: Any = validators.extend  # untyped in types-jsonschema
    checker: Validator = make(Draft202012Validator, {"items": items})(schema)
    return checker


def first_violation(document: Any, kind: str, version: int) -> str | None:
    """What a schema does not allow in ``document``, most relevant first, or None.

    Returns:
        A sentence without a full stop that begins with the address of the offending value.
    """
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
