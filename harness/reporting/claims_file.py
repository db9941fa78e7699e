"""The file of a paper's claims: read strictly, with the offending key named.

The file that comes with the package is ``harness/reporting/claims.toml``; its head says what a rule
means. The form is ``harness/schemas/claims-v1.schema.json``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import strict_json
from harness.errors import UnreadableFileError, UserError
from harness.plain_text import visible
from harness.reporting.data import PaperPoint

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SCHEMA_VERSION = 1
MAX_BYTES = 1024**2
OWN_NAME = "claims.toml"


@dataclass(frozen=True)
class Side:
    """What a rule looks at on one side.

    Args:
        method: The method's name.
        metrics: In order of preference.
    """

    method: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Expectation:
    """A number of the paper.

    Args:
        of: ``"from"``, ``"to"`` or ``"change"``.
        value: The paper's, in the metric's unit (a share for a relative change).
        allowed: How far ours may be from it, in the same unit.
        share: ``allowed`` as a share of ``value``, if the file gives that.
    """

    of: str
    value: float
    allowed: float
    share: float | None = None


@dataclass(frozen=True)
class Rule:
    """How results become a verdict; see the head of ``claims.toml``.

    Args:
        comparison: ``"up"``, ``"down"``, ``"same"`` or ``"outlasts"``.
        benchmark: Where both sides are measured.
        start: The side ``from``.
        end: The side ``to``.
        relative: The change is ``to / from - 1``.
        significant: The interval of the difference must not reach 0.
        tolerance: Of ``"same"``.
        measured: How such numbers are made, if nothing else says it.
        at_least: Smallest budgets of a cell that counts.
        expect: The paper's numbers.
    """

    comparison: str
    benchmark: str
    start: Side
    end: Side
    relative: bool = False
    significant: bool = False
    tolerance: float = 0.0
    measured: str | None = None
    at_least: Mapping[str, float] = field(default_factory=dict)
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One claim.

    Args:
        id: Its name.
        claim: What the paper says.
        paper: The paper's value, as text.
        command: What shows ours.
        rule: The rule.
    """

    id: str
    claim: str
    paper: str
    command: str
    rule: Rule


@dataclass(frozen=True)
class ClaimsFile:
    """All of one paper's.

    Args:
        paper: Title and reference.
        claims: In the file's order.
        points: Numbers for plots.
    """

    paper: str
    claims: tuple[Claim, ...]
    points: tuple[PaperPoint, ...]


def read_claims(path: Path | None = None) -> ClaimsFile:
    """Read and check a file of claims.

    Args:
        path: The file; None for the one that comes with the package.

    Raises:
        UserError: If there is no such file, or a key is missing, unknown or has a value that is not
            allowed.
        UnreadableFileError: If it cannot be read or is no TOML.
    """
    name = OWN_NAME if path is None else visible(str(path))
    try:
        if path is None:
            text = resources.files("harness.reporting").joinpath(OWN_NAME).read_text("utf-8")
        else:
            text = strict_json.read_text(path, MAX_BYTES)
        content = tomllib.loads(text)
    except FileNotFoundError:
        raise UserError(
            f"There is no {name}.",
            hint="Give a file as harness/reporting/claims.toml is, or leave the option out.",
        ) from None
    except (OSError, strict_json.StrictJSONError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UnreadableFileError(f"{name} cannot be read: {reason}.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnreadableFileError(f"{name} is not TOML: {visible(str(error))}.") from None
    return parse_claims(content, name)


def parse_claims(content: Mapping[str, Any], name: str = OWN_NAME) -> ClaimsFile:
    """Claims from the content of a file.

    Args:
        content: As TOML gives it.
        name: The file's, for errors.

    Raises:
        UserError: As :func:`read_claims`.
    """
    for violation in (*_violations(content), *_further_violations(content)):
        raise UserError(
            f"{name}: {violation}.",
            hint="The head of harness/reporting/claims.toml says what each key means.",
        )
    return ClaimsFile(
        content["paper"],
        tuple(_claim(item) for item in content["claims"]),
        tuple(
            PaperPoint(item["quantity"], item["method"], item["tokens"], item.get("value"))
            for item in content.get("points", [])
        ),
    )


def _claim(item: Mapping[str, Any]) -> Claim:
    rule = item["rule"]
    sides = [Side(rule[key]["method"], tuple(rule[key]["metrics"])) for key in ("from", "to")]
    expectations = tuple(_expectation(expected) for expected in rule.get("expect", []))
    return Claim(
        item["id"],
        item["claim"],
        item["paper"],
        item["command"],
        Rule(
            comparison=rule["comparison"],
            benchmark=rule["benchmark"],
            start=sides[0],
            end=sides[1],
            relative=rule.get("relative", False),
            significant=rule.get("significant", False),
            tolerance=float(rule.get("tolerance", 0.0)),
            measured=rule.get("measured"),
            at_least=rule.get("at_least", {}),
            expect=expectations,
        ),
    )


def _expectation(item: Mapping[str, Any]) -> Expectation:
    value, share = float(item["value"]), item.get("within_share")
    if share is None:
        return Expectation(item["of"], value, float(item["within"]))
    return Expectation(item["of"], value, share * abs(value), float(share))


# --- What is wrong with a file -------------------------------------------------------------------


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    from harness.schema_check import load_schema

    schema = load_schema("claims", SCHEMA_VERSION)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _violations(content: Any) -> Iterator[str]:
    """What the schema does not allow, the most relevant first."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator().iter_errors(content))
    if error is not None:
        yield _explained(error)


def _explained(error: ValidationError) -> str:
    where = _address(list(error.absolute_path))
    schema: Any = error.schema
    given: Any = error.instance
    kind = error.validator
    text = f": {visible(error.message)}"
    if kind == "additionalProperties":
        unknown = sorted(map(str, set(given) - set(schema["properties"])))[0]
        text = (
            f" has the unknown key {_shown(unknown)}; allowed are {', '.join(schema['properties'])}"
        )
    elif kind == "required":
        text = f" lacks the key {next(key for key in schema['required'] if key not in given)!r}"
    elif kind == "enum":
        text = f" is {_shown(given)}; allowed are {', '.join(map(repr, schema['enum']))}"
    elif kind == "oneOf":
        keys = " or ".join(repr(item["required"][0]) for item in schema["oneOf"])
        text = f" must have {keys}, one of the two"
    elif kind == "not":
        text = " has the key 'tolerance', which only the comparison 'same' knows"
    elif kind == "type":
        text = f" is {_shown(given)}; it must be of the type {schema['type']}"
    return where + text


def _address(path: Sequence[str | int]) -> str:
    """``claims[2].rule.from``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return visible(text) or "the file"


def _shown(value: Any) -> str:
    return visible(repr(value), 60)


def _further_violations(content: Mapping[str, Any]) -> Iterator[str]:
    """What a schema cannot say."""
    seen: set[str] = set()
    for index, item in enumerate(content["claims"]):
        where = f"claims[{index}]"
        if item["id"] in seen:
            yield f"{where}.id is {item['id']!r}, which an earlier claim has"
        seen.add(item["id"])
        rule = item["rule"]
        counts = [len(rule[side]["metrics"]) for side in ("from", "to")]
        if counts[0] != counts[1]:
            yield (
                f"{where}.rule.to.metrics has {counts[1]} names and from.metrics {counts[0]}: the "
                "first is compared with the first, and so on"
            )
    for where, value in _numbers(content, ""):
        if not math.isfinite(value):
            yield f"{where} is {value}; it must be finite"


def _numbers(value: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{where}[{index}]")
