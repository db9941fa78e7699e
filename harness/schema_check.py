"""Validation against the committed JSON Schemas, fast enough for a gate over thousands of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_PYTHON_TYPES: dict[str, frozenset[type]] = {
    # Exact types: bool is an int to isinstance, and not a number to JSON.
    "number": frozenset({int, float}),
    "integer": frozenset({int}),
    "string": frozenset({str}),
    "boolean": frozenset({bool}),
    "null": frozenset({type(None)}),
}
_SHOWN_CHARACTERS = 120

_Keyword = Callable[[Any, Any, Any, Any], Iterator[Any]]


def load_schema(kind: str, version: int) -> dict[str, Any]:
    """The committed schema of ``kind`` (``"metrics"`` or ``"run"``)."""
    name = f"{kind}-v{version}.schema.json"
    text = resources.files("harness").joinpath("schemas", name).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _scalar_types(rule: Any) -> frozenset[type]:
    """Python types that a subschema saying nothing but ``type`` accepts; empty if it says more."""
    if not isinstance(rule, dict) or not set(rule) <= {"type", "description"} or "type" not in rule:
        return frozenset()
    names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    if not all(name in _PYTHON_TYPES for name in names):
        return frozenset()
    return frozenset[type]().union(*(_PYTHON_TYPES[name] for name in names))


def _short_cuts(slow_items: _Keyword) -> dict[str, _Keyword]:
    """``items`` and ``properties`` that look at scalars directly; nearly all time goes there.

    What a short cut does not accept goes the library's way, so the verdicts are the library's.
    """
    known: dict[int, frozenset[type]] = {}  # by identity: the schema lives as long as its validator

    def accepted(rule: Any) -> frozenset[type]:
        if id(rule) not in known:
            known[id(rule)] = _scalar_types(rule)
        return known[id(rule)]

    def items(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not (isinstance(instance, list) and set(map(type, instance)) <= accepted(rule)):
            yield from slow_items(validator, rule, instance, schema) or ()

    def properties(validator: Any, rules: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, dict):
            for name, rule in rules.items():
                if name in instance and type(instance[name]) not in accepted(rule):
                    yield from validator.descend(instance[name], rule, path=name, schema_path=name)

    return {"items": items, "properties": properties}


@cache
def _validator(kind: str, version: int) -> Validator:
    """One validator a schema and process; importing jsonschema waits until something is checked."""
    from jsonschema import Draft202012Validator, validators

    schema = load_schema(kind, version)
    Draft202012Validator.check_schema(schema)
    make: Any = validators.extend  # untyped in types-jsonschema
    fast = make(Draft202012Validator, _short_cuts(Draft202012Validator.VALIDATORS["items"]))
    checker: Validator = fast(schema)
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
