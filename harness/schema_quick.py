"""JSON Schemas as plain predicates: a yes within a tenth of a millisecond.

jsonschema builds a validator object for every value that it visits, which is most of the time of a
gate over a thousand files. A predicate of this module says yes to what the schema allows; where it
says no, the library is asked, so that its verdict and its words are the only ones that reject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

_TYPES: Mapping[str, frozenset[type]] = {
    # Exact types: bool is an int to isinstance, and not a number to JSON.
    "number": frozenset({int, float}),
    "integer": frozenset({int}),
    "string": frozenset({str}),
    "boolean": frozenset({bool}),
    "null": frozenset({type(None)}),
    "object": frozenset({dict}),
    "array": frozenset({list}),
}
_SAY_NOTHING = {"$schema", "$id", "title", "description", "$comment"}
_TOGETHER = {"then", "else", "properties"}  # looked at with ``if`` and ``additionalProperties``


def quick_check(schema: Any) -> Check:
    """A predicate of a JSON Schema (draft 2020-12).

    Returns:
        True only for what the schema allows, as the library sees it, of exact JSON types (a subclass
        of one is another type here). False also for everything if the schema uses a keyword that
        is not known here.
    """
    try:
        return _compile(schema)
    except KeyError:
        return lambda value: False


def _compile(schema: Any) -> Check:
    if isinstance(schema, bool):
        return lambda value: schema
    checks = [
        _KEYWORDS[word](schema[word], schema)
        for word in schema
        if word not in _SAY_NOTHING and word not in _TOGETHER
    ]
    if "properties" in schema and "additionalProperties" not in schema:
        checks.append(_properties(True, schema))
    if len(checks) == 1:
        return checks[0]
    return lambda value: all(check(value) for check in checks)


def _allowed_types(rule: Any) -> frozenset[type]:
    return frozenset[type]().union(*(_TYPES[name] for name in _names(rule)))


def _names(rule: Any) -> list[str]:
    return [rule] if isinstance(rule, str) else list(rule)


def _only_types(schema: Any) -> frozenset[type] | None:
    """The types that a schema saying nothing but ``type`` allows."""
    says_type = isinstance(schema, dict) and set(schema) - _SAY_NOTHING == {"type"}
    if says_type and "integer" not in _names(schema["type"]):
        return _allowed_types(schema["type"])
    return None


def _type(rule: Any, schema: Any) -> Check:
    types = _allowed_types(rule)
    if "integer" not in _names(rule):
        return lambda value: type(value) in types
    # 1.0 is an integer to JSON Schema.
    return lambda value: type(value) in types or (type(value) is float and value.is_integer())


def _items(rule: Any, schema: Any) -> Check:
    types = _only_types(rule)
    if types is not None:
        return lambda value: type(value) is not list or types.issuperset(map(type, value))
    check = _compile(rule)
    return lambda value: type(value) is not list or all(check(item) for item in value)


def _properties(additional: Any, schema: Any) -> Check:
    named = {name: _compile(rule) for name, rule in schema.get("properties", {}).items()}
    others = _compile(additional)

    def check(value: Any) -> bool:
        if type(value) is not dict:
            return True
        return all(named.get(name, others)(item) for name, item in value.items())

    return check


def _required(names: Any, schema: Any) -> Check:
    wanted = frozenset(names)
    return lambda value: type(value) is not dict or wanted <= value.keys()


def _enum(allowed: Any, schema: Any) -> Check:
    if not all(type(item) in {str, int} for item in allowed):
        raise KeyError("enum")
    # Not bool, which Python takes for an int; 1.0 is 1 to JSON Schema.
    return lambda value: type(value) in {str, int, float} and value in allowed


def _const(constant: Any, schema: Any) -> Check:
    return _enum([constant], schema)


def _pattern(rule: str, schema: Any) -> Check:
    found = re.compile(rule).search
    return lambda value: type(value) is not str or found(value) is not None


def _min_length(least: int, schema: Any) -> Check:
    return lambda value: type(value) is not str or len(value) >= least


def _minimum(least: float, schema: Any) -> Check:
    return lambda value: type(value) not in {int, float} or value >= least


def _any_of(rules: Any, schema: Any) -> Check:
    checks = [_compile(rule) for rule in rules]
    return lambda value: any(check(value) for check in checks)


def _if(rule: Any, schema: Any) -> Check:
    condition = _compile(rule)
    then, other = _compile(schema.get("then", True)), _compile(schema.get("else", True))
    return lambda value: then(value) if condition(value) else other(value)


_KEYWORDS: Mapping[str, Callable[[Any, Any], Check]] = {
    "type": _type,
    "items": _items,
    "additionalProperties": _properties,
    "required": _required,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "minLength": _min_length,
    "minimum": _minimum,
    "anyOf": _any_of,
    "if": _if,
}
