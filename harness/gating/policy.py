"""What a gate allows: thresholds by metric, method, benchmark or tier, from a TOML file or options.

A policy (``gate.toml``)::

    threshold = 0                     # of every metric that no rule names
    confidence = 0.95                 # of the intervals that tell a difference from noise
    strict = false                    # also fail what is suspicious or new
    allow_missing = ["no-sink/*"]     # as --allow-missing

    [[rule]]                          # the last rule that matches decides, key by key
    metric = "joint_success*"         # globs: metric, method, benchmark; tier is the end of a name
    threshold = [0.02, "5%"]          # the larger of the two is allowed
    spread = 3                        # at least 3 standard deviations between the baseline's seeds
    gated = true                      # false: shown, and only its vanishing fails
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from harness.errors import UnreadableFileError, UserError
from harness.plain_text import visible

DEFAULT_NAME = "gate.toml"
MAX_POLICY_BYTES = 1024**2
_TOP_KEYS = ("threshold", "spread", "confidence", "strict", "allow_missing", "rule")
_SELECTORS = ("metric", "method", "benchmark", "tier")
_RULE_KEYS = (*_SELECTORS, "threshold", "spread", "gated")
_THRESHOLD_FORMS = 'a number (0.02), a share of the baseline ("2.5%"), or a list of both'


@dataclass(frozen=True)
class Threshold:
    """How much worse a value may be.

    Args:
        absolute: In the metric's unit.
        relative: As a share of the baseline's size; says nothing about a baseline of zero.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def allowance(self, baseline: float) -> float:
        """The larger of the two, in the metric's unit.

        A baseline of zero leaves the absolute one alone: it is 0 unless given, and then any
        worsening from zero is beyond it.
        """
        return max(self.absolute, self.relative * abs(baseline))

    def __str__(self) -> str:
        parts = [f"{self.absolute:.6g}"] if self.absolute or not self.relative else []
        if self.relative:
            parts.append(f"{100 * self.relative:.6g}%")
        return " or ".join(parts)


def parse_threshold(value: Any, where: str) -> Threshold:
    """A threshold from TOML or the command line.

    Args:
        value: ``0.02``, ``"0.02"``, ``"2.5%"``, or a list of such.
        where: Named in errors.

    Raises:
        UserError: If it is none of these, is negative or is not finite.
    """
    items = value if isinstance(value, list) and value else [value]
    found = Threshold()
    for item in items:
        text = str(item).strip() if isinstance(item, (int, float, str)) else ""
        share = text.endswith("%")
        try:
            number = math.nan if isinstance(item, bool) else float(text.removesuffix("%"))
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise UserError(
                f"{where} is {visible(repr(item))}; a threshold is {_THRESHOLD_FORMS}, "
                "not negative."
            )
        if share:
            found = replace(found, relative=max(found.relative, number / 100))
        else:
            found = replace(found, absolute=max(found.absolute, number))
    return found


@dataclass(frozen=True)
class Rule:
    """One ``[[rule]]``: which metrics of which cells, and what holds for them.

    Args:
        metric: Glob of metric names, like the next two.
        method: Glob of method names.
        benchmark: Glob of benchmark names.
        tier: The metric is the tier's own: its name ends with ``_<tier>``. None: any metric.
        threshold: None leaves what earlier rules say, like the next two.
        spread: Multiple of the baseline's standard deviation between seeds that is allowed anyway.
        gated: Whether its value is gated at all.
        option: It comes from ``--fail-if``, as typed.
    """

    metric: str = "*"
    method: str = "*"
    benchmark: str = "*"
    tier: str | None = None
    threshold: Threshold | None = None
    spread: float | None = None
    gated: bool | None = None
    option: str | None = None

    def matches(self, method: str, benchmark: str, metric: str) -> bool:
        """Whether the rule speaks of this metric of this kind of cell."""
        return (
            fnmatchcase(metric, self.metric)
            and fnmatchcase(method, self.method)
            and fnmatchcase(benchmark, self.benchmark)
            and (self.tier is None or metric == self.tier or metric.endswith(f"_{self.tier}"))
        )


@dataclass(frozen=True)
class Limits:
    """What holds for one metric of one kind of cell, all rules considered."""

    threshold: Threshold = Threshold()
    spread: float = 0.0
    gated: bool = True


@dataclass(frozen=True)
class Policy:
    """All of it.

    Args:
        name: Where it comes from, for people.
        limits: For what no rule names.
        rules: In order; the last that matches decides, key by key.
        allow_missing: Globs of cells (``method/benchmark-seed42``) or of metrics of cells
            (``CELL:METRIC``) that may be missing or not comparable.
        confidence: Of the bootstrap intervals.
        strict: Also fail what is suspicious or new.
    """

    name: str = "built in: nothing may get worse"
    limits: Limits = Limits()
    rules: Sequence[Rule] = ()
    allow_missing: Sequence[str] = ()
    confidence: float = 0.95
    strict: bool = False
    _known: dict[tuple[str, str, str], Limits] = field(
        default_factory=dict, repr=False, compare=False
    )

    def limits_for(self, method: str, benchmark: str, metric: str) -> Limits:
        """The limits of one metric of one kind of cell."""
        key = (method, benchmark, metric)
        if key not in self._known:
            found = self.limits
            for rule in self.rules:
                if rule.matches(*key):
                    found = Limits(
                        found.threshold if rule.threshold is None else rule.threshold,
                        found.spread if rule.spread is None else rule.spread,
                        found.gated if rule.gated is None else rule.gated,
                    )
            self._known[key] = found
        return self._known[key]

    def with_options(
        self, fail_if: Sequence[str], allow_missing: Sequence[str], *, strict: bool
    ) -> Policy:
        """This policy with the command line's options on top.

        Raises:
            UserError: If an option cannot be understood.
        """
        return replace(
            self,
            rules=[*self.rules, *map(parse_fail_if, fail_if)],
            allow_missing=[*self.allow_missing, *map(_checked_glob, allow_missing)],
            strict=self.strict or strict,
            _known={},
        )


def parse_fail_if(text: str) -> Rule:
    """``METRIC:THRESHOLD`` as a rule that outdoes the file's: its threshold is the whole allowance.

    Raises:
        UserError: If it has no such form.
    """
    metric, colon, threshold = text.rpartition(":")  # a metric's name may hold colons
    if not colon or not metric:
        raise UserError(
            f"--fail-if {visible(text)!r} is not METRIC:THRESHOLD.",
            hint="For example --fail-if joint_success:0.02 or --fail-if 'average_cost:2.5%'.",
        )
    return Rule(
        metric=metric,
        threshold=parse_threshold(threshold, f"The threshold of --fail-if {visible(text)!r}"),
        spread=0.0,
        gated=True,
        option=text,
    )


def _checked_glob(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UserError(
            f"{visible(repr(text))} names no cell.",
            hint="Allow cells by METHOD/BENCHMARK-seedN and metrics by CELL:METRIC, with * and ?, "
            "for example 'no-sink/scalemcp-mini-seed44' or '*:recall_at_k'.",
        )
    return text


def parse_policy(data: bytes, name: str) -> Policy:
    """A policy from the bytes of a TOML file.

    Args:
        data: The file's content.
        name: The file, for people.

    Raises:
        UnreadableFileError: If it is not TOML.
        UserError: If a key is unknown or has a value that is not allowed.
    """
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"{name} is not TOML: {visible(str(error))}.") from None
    _check_keys(table, _TOP_KEYS, name)
    rules = table.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise UserError(f"{name}: rule must be a list of tables, each begun by [[rule]].")
    allowed = table.get("allow_missing", [])
    if not isinstance(allowed, list):
        raise UserError(f"{name}: allow_missing must be a list of texts.")
    return Policy(
        name=name,
        limits=Limits(
            parse_threshold(table.get("threshold", 0), f"{name}: threshold"),
            _number(table, "spread", name, 0.0),
        ),
        rules=[_rule(rule, f"{name}: rule {i}") for i, rule in enumerate(rules, start=1)],
        allow_missing=[_checked_glob(item) for item in allowed],
        confidence=_confidence(table, name),
        strict=_switch(table, "strict", name, default=False),
    )


def _rule(table: Mapping[str, Any], where: str) -> Rule:
    _check_keys(table, _RULE_KEYS, where)
    for key in _SELECTORS:
        if key in table and not (isinstance(table[key], str) and table[key]):
            raise UserError(
                f"{where}: {key} is {visible(repr(table[key]))}; it must be a name or a glob."
            )
    if not set(table) - set(_SELECTORS):
        raise UserError(
            f"{where} says nothing about what it selects.",
            hint="Give it a threshold, a spread, or gated = false.",
        )
    threshold = table.get("threshold")
    return Rule(
        **{key: table[key] for key in _SELECTORS if key in table},
        threshold=None if threshold is None else parse_threshold(threshold, f"{where}: threshold"),
        spread=_number(table, "spread", where, 0.0) if "spread" in table else None,
        gated=_switch(table, "gated", where, default=True) if "gated" in table else None,
    )


def _check_keys(table: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    names = list(allowed)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise UserError(
                f"{where} has the unknown key {visible(key)!r}.{guess} Allowed: {', '.join(names)}."
            )


def _number(table: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(
            f"{where}: {key} is {visible(repr(table[key]))}; it must be a number, 0 or larger."
        )
    return float(value)


def _confidence(table: Mapping[str, Any], where: str) -> float:
    value = _number(table, "confidence", where, 0.95)
    if not 0 < value < 1:
        raise UserError(f"{where}: confidence is {value!r}; it must lie between 0 and 1.")
    return value


def _switch(table: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise UserError(f"{where}: {key} is {visible(repr(value))}; it must be true or false.")
    return value
