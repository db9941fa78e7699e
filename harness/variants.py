"""Variants: a registered method under a name of its own, with some of its config replaced.

A suite names them (``[variants.NAME]``), so that an ablation or a small run for CI needs no code. A
variant is a method like any other: its name and config go into the cell id, its results into
``metrics/NAME/``.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.errors import UserError
from harness.registry import Registry
from methods.base import Method


@dataclass(frozen=True)
class Variant:
    """What makes a variant.

    Args:
        name: Its own name.
        method: The registered method that it is made from.
        config: Config fields to replace, nested as the config is; TOML or JSON types.
        origin: Who defines it, for example ``"suite suites/smoke.toml"``.
    """

    name: str
    method: str
    config: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "a suite"

    def to_json(self) -> dict[str, Any]:
        """For a worker's request."""
        return dataclasses.asdict(self)


def register_variants(methods: Registry[Method], variants: Sequence[Variant]) -> None:
    """Make variants known beside the methods that they are made from.

    Raises:
        UserError: If a name is taken or malformed, the method is unknown, or the config has no such
            field or does not take the value; the message names the key.
    """
    for variant in variants:
        key = f"variants.{variant.name}"
        if variant.method not in methods:
            near = _nearest(variant.method, methods.names())
            raise UserError(
                f"{key}.method in {variant.origin} is {variant.method!r}, which is no method.{near} "
                f"Known methods: {', '.join(methods.names())}."
            )
        entry = methods.entry(variant.method)
        methods.register(
            variant.name,
            entry.target,
            version=entry.version,
            origin=f"{variant.origin}, a variant of {variant.method} ({entry.origin})",
            description=f"{variant.method} with other settings",
            loader=lambda variant=variant: make_variant(methods.load(variant.method), variant),  # type: ignore[misc]
        )


def make_variant(method: Method, variant: Variant) -> Method:
    """The method with the variant's name and config.

    Raises:
        UserError: As :func:`register_variants`, or if the method is no dataclass with the fields
            ``name`` and ``config``.
    """
    key = f"variants.{variant.name}"
    names: set[str] = set()
    if dataclasses.is_dataclass(method) and not isinstance(method, type):
        names = {item.name for item in dataclasses.fields(method) if item.init}
    if not {"name", "config"} <= names:
        raise UserError(
            f"{key} in {variant.origin} cannot be made: the method {variant.method!r} is no "
            "dataclass with the fields 'name' and 'config'.",
            hint="Make it one (as methods.agent.AgentMethod is), or register the variant as a method "
            "of its own.",
        )
    config = _replaced(method.config, variant.config, f"{key}.config", variant.origin)
    made: Method = dataclasses.replace(method, name=variant.name, config=config)  # type: ignore[type-var]
    return made


def _replaced(config: Any, changes: Mapping[str, Any], key: str, origin: str) -> Any:
    """A config dataclass with fields replaced, table by table."""
    hints = typing.get_type_hints(type(config))
    known = [item.name for item in dataclasses.fields(config) if item.init]
    new = {}
    for name, value in changes.items():
        where = f"{key}.{name}"
        if name not in known:
            raise UserError(
                f"{where} in {origin} is no setting.{_nearest(name, known)} "
                f"Known here: {', '.join(known)}."
            )
        before = getattr(config, name)
        if dataclasses.is_dataclass(before) and not isinstance(before, type):
            if not isinstance(value, Mapping):
                raise UserError(f"{where} in {origin} is {value!r}; it must be a table [{where}].")
            new[name] = _replaced(before, value, where, origin)
        else:
            new[name] = _fitting(value, before, hints.get(name), where, origin)
    try:
        return dataclasses.replace(config, **new)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key} in {origin} does not fit together: {error}.") from error


def _fitting(value: Any, before: Any, hint: Any, where: str, origin: str) -> Any:
    """A TOML value as the type of the setting that it replaces."""
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            raise UserError(
                f"{where} in {origin} is {value!r}; allowed are "
                f"{', '.join(map(repr, allowed))}.{_nearest(str(value), map(str, allowed))}"
            )
        return value
    if isinstance(before, float) and type(value) is int:
        return float(value)
    if isinstance(before, tuple) and isinstance(value, list):
        return tuple(value)
    if before is not None and type(value) is not type(before):
        raise UserError(
            f"{where} in {origin} is {value!r} ({type(value).__name__}); it must be of the type of "
            f"{before!r} ({type(before).__name__})."
        )
    return value


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
