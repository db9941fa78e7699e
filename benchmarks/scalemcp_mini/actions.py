"""Structured actions: constructors, the Gymnasium spaces, and validation that never raises through.

An action is a dict with every key, so that it lies in the space; keys a verb does not use keep their
defaults. ``values`` is padded with -1.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Final, TypeVar

from gymnasium import spaces

from benchmarks.scalemcp_mini.words import MAX_VALUES, VALUE_RANGE, VERBS, YEARS

Action = dict[str, Any]
_T = TypeVar("_T")

SEARCH, CALL, ASK, ANSWER = range(4)
_NO_VALUES: Final = (-1,) * MAX_VALUES
_MAX_QUERY: Final = 200
_CHARSET: Final = string.ascii_letters + string.digits + string.punctuation + " "


class BadActionError(ValueError):
    """An action that does not mean anything; the environment turns it into an MCP error."""


def _guarded(read: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """``read``, with whatever an action's own code raises (a ``get``, an iterator, an ``__index__``)
    turned into BadActionError.
    """

    @wraps(read)
    def guarded(action: Any) -> _T:
        try:
            return read(action)
        except BadActionError:
            raise
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything
            raise BadActionError(
                f"the action cannot be read: {type(error).__name__}; give a plain dict"
            ) from None

    return guarded


def search(query: str) -> Action:
    """Search the tool store."""
    return {"verb": SEARCH, "query": query, "tool": "", "year": YEARS[0], "values": _NO_VALUES}


def call(tool: str, year: int) -> Action:
    """Call a tool by its handle."""
    return {"verb": CALL, "query": "", "tool": tool, "year": year, "values": _NO_VALUES}


def ask_user(tool: str) -> Action:
    """Ask the user to consent to a tool."""
    return {"verb": ASK, "query": "", "tool": tool, "year": YEARS[0], "values": _NO_VALUES}


def answer(values: Sequence[int]) -> Action:
    """Answer with 0 to 5 values and end the episode."""
    padded = tuple(values) + _NO_VALUES[len(values) :]
    return {"verb": ANSWER, "query": "", "tool": "", "year": YEARS[0], "values": padded}


def action_space() -> spaces.Dict:
    """The space of actions."""
    return spaces.Dict(
        {
            "verb": spaces.Discrete(len(VERBS)),
            "query": spaces.Text(_MAX_QUERY, min_length=0, charset=_CHARSET),
            "tool": spaces.Text(64, min_length=0, charset=_CHARSET),
            "year": spaces.Discrete(len(YEARS), start=YEARS[0]),
            "values": spaces.Tuple([spaces.Discrete(VALUE_RANGE + 1, start=-1)] * MAX_VALUES),
        }
    )


def observation_space() -> spaces.Dict:
    """The space of observations: a message as words, and MCP's ``isError``."""
    return spaces.Dict(
        {
            "text": spaces.Text(2000, min_length=1, charset=_CHARSET),
            "is_error": spaces.Discrete(2),
        }
    )


@_guarded
def verb_of(action: Any) -> int:
    """The verb of anything that may be an action.

    Raises:
        BadActionError: If it has none.
    """
    if not isinstance(action, Mapping):
        raise BadActionError(f"an action is a mapping, got {type(action).__name__}")
    verb = _integer(action.get("verb"), "verb")
    if not 0 <= verb < len(VERBS):
        raise BadActionError(f"verb is {verb}; allowed is 0 to 3 ({', '.join(VERBS)})")
    return verb


@_guarded
def query_of(action: Mapping[str, Any]) -> str:
    """The query, at most 200 characters of it.

    Raises:
        BadActionError: If it is not a string.
    """
    query = action.get("query")
    if not isinstance(query, str):
        raise BadActionError(f"query is a string, got {type(query).__name__}")
    return str.__str__(query)[:_MAX_QUERY]  # an exact str, whatever a subclass overrides


@_guarded
def tool_of(action: Mapping[str, Any]) -> str:
    """The handle.

    Raises:
        BadActionError: If it is not a string that could be one.
    """
    tool = action.get("tool")
    name = str.__str__(tool) if isinstance(tool, str) else None
    if name is None or len(name) > 64 or not name.isascii():
        raise BadActionError("tool is a handle of at most 64 ASCII characters, such as '12-07'")
    return name


@_guarded
def year_of(action: Mapping[str, Any]) -> int:
    """The year.

    Raises:
        BadActionError: If it is not an integer that the tools' inputSchema allows.
    """
    year = _integer(action.get("year"), "year")
    if not YEARS[0] <= year <= YEARS[-1]:
        raise BadActionError(f"year is {year}; allowed is {YEARS[0]} to {YEARS[-1]}")
    return year


@_guarded
def values_of(action: Mapping[str, Any]) -> tuple[int, ...]:
    """The answered values, padding removed.

    Raises:
        BadActionError: If there are too many, one is out of range, or one follows padding.
    """
    given = action.get("values")
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadActionError("values is a sequence of 0 to 5 integers")
    first = islice(given, MAX_VALUES + 1)  # enough to see that there are too many
    values = tuple(_integer(value, "values") for value in first)
    end = values.index(-1) if -1 in values else len(values)
    if len(values) > MAX_VALUES or any(value != -1 for value in values[end:]):
        raise BadActionError("values holds 0 to 5 integers, then only -1")
    if any(not 0 <= value < VALUE_RANGE for value in values[:end]):
        raise BadActionError(f"each value is 0 to {VALUE_RANGE - 1}")
    return values[:end]


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool):
        raise BadActionError(f"{name} is an integer, got a bool")
    try:
        return operator.index(value)
    except TypeError:
        raise BadActionError(f"{name} is an integer, got {type(value).__name__}") from None
