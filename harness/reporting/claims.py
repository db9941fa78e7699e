"""The paper's claims beside what was measured: rules are data, verdicts are what they evaluate to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.reporting.claims_file import Claim, ClaimsFile, Expectation, Rule, Side
from harness.reporting.data import CellData, ClaimRow, ClaimsTable, ReportData, Table
from harness.reporting.lengths import how_measured, out_of_memory
from harness.reporting.measures import Difference, mean_of, paired, setting
from harness.reporting.tables import NOTHING, difference_text, failure_text, plural
from harness.reporting.text import decimal_bytes, name_text, number, sentence_text, signed

if TYPE_CHECKING:
    from harness.collection import Problem

REPRODUCED = "reproduced"
DIRECTION = "direction reproduced"
NOT_REPRODUCED = "not reproduced"
NOT_TESTABLE = "not testable here"
VERDICTS = (REPRODUCED, DIRECTION, NOT_REPRODUCED, NOT_TESTABLE)
MIN_PAIRS = 6
"""Of fewer pairs all may lie on one side by chance; the gate has the same bound."""
_HOW = {"cpu": "CPU", "cuda": "CUDA", "simulated": "simulated"}


@dataclass(frozen=True)
class _Judged:
    """What a rule says of the results.

    Args:
        verdict: One of ``VERDICTS``.
        ours: What was measured, as text.
        reason: Why.
        measured: How it was measured.
    """

    verdict: str
    ours: str
    reason: str
    measured: str = NOTHING


@dataclass(frozen=True)
class _Found:
    """The cells of both sides that can be compared, by seed, all of one setting.

    Args:
        pairs: (cell of ``from``, cell of ``to``).
        metrics: The metric of either side.
    """

    pairs: list[tuple[CellData, CellData]]
    metrics: tuple[str, str]

    def entries(self, side: int) -> list[Mapping[str, Any]]:
        """The metric's entries of one side."""
        metric = self.metrics[side]
        return [pair[side].document["metrics"][metric] for pair in self.pairs]

    def values(self, side: int) -> list[float]:
        """The metric's values of one side, where defined."""
        return [entry["value"] for entry in self.entries(side) if entry["value"] is not None]

    @property
    def unit(self) -> str:
        """Of the metric."""
        return str(self.entries(1)[0]["unit"])


def judge(data: ReportData, claims: ClaimsFile) -> ClaimsTable:
    """Evaluate every claim's rule over the results.

    Args:
        data: The report's.
        claims: The file's content.
    """
    rows = tuple(_row(claim, data) for claim in claims.claims)
    return ClaimsTable(claims.paper, rows, claims.points)


def _row(claim: Claim, data: ReportData) -> ClaimRow:
    judged = _judged(claim.rule, data)
    return ClaimRow(
        slug=claim.id,
        claim=claim.claim,
        paper=claim.paper,
        ours=judged.ours,
        measured=judged.measured,
        verdict=judged.verdict,
        rule=rule_text(claim.rule),
        reason=judged.reason,
        command=claim.command,
    )


def _judged(rule: Rule, data: ReportData) -> _Judged:
    found = _find(rule, data)
    if isinstance(found, str):
        return _Judged(NOT_TESTABLE, NOTHING, found)
    judged = _outlasts(rule, found) if rule.comparison == "outlasts" else _change(rule, found)
    return replace(judged, measured=_measured(rule, found))


# --- What there is to compare --------------------------------------------------------------------


def _find(rule: Rule, data: ReportData) -> _Found | str:
    """The cells that a rule compares, or why there are none."""
    sides = []
    for side in (rule.start, rule.end):
        cells = [
            cell
            for cell in data.cells
            if cell.benchmark == rule.benchmark and cell.method == side.method
        ]
        usable = [cell for cell in cells if cell.ok and _is_enough(cell, rule.at_least)]
        if not usable:
            return _why_nothing(rule, side, cells)
        sides.append(usable)
    with_value = rule.comparison != "outlasts"
    for metrics in zip(rule.start.metrics, rule.end.metrics, strict=True):
        pairs = _pairs(sides[0], sides[1], metrics, with_value=with_value)
        if pairs:
            return _Found(pairs, metrics)
    named = " and ".join(
        f"{' or '.join(map(name_text, dict.fromkeys(side.metrics)))} of {name_text(side.method)}"
        for side in (rule.start, rule.end)
    )
    return f"No seed on {name_text(rule.benchmark)} has both, run the same way: {named}."


def _why_nothing(rule: Rule, side: Side, cells: Sequence[CellData]) -> str:
    what = f"{name_text(side.method)} on {name_text(rule.benchmark)}"
    failed = [cell for cell in cells if not cell.ok]
    if failed:
        return f"{what} failed: {failure_text(failed[0])}"
    if cells:
        return f"No result of {what} has {_at_least_text(rule)}."
    return f"There is no result of {what} here."


def _is_enough(cell: CellData, at_least: Mapping[str, float]) -> bool:
    budget = cell.document["budget"]
    return all(
        isinstance(budget.get(name), int | float) and budget[name] >= least
        for name, least in at_least.items()
    )


def _pairs(
    starts: Sequence[CellData],
    ends: Sequence[CellData],
    metrics: tuple[str, str],
    *,
    with_value: bool,
) -> list[tuple[CellData, CellData]]:
    """Cells of one seed and setting that report the metrics; of the setting with most of them."""
    by_seed = {cell.seed: cell for cell in ends}
    groups: dict[str, list[tuple[CellData, CellData]]] = {}
    for start in starts:
        end = by_seed.get(start.seed)
        if end is None or setting(start) != setting(end):
            continue
        entries = [
            cell.document["metrics"].get(metric)
            for cell, metric in zip((start, end), metrics, strict=True)
        ]
        if all(e is not None and (e["value"] is not None or not with_value) for e in entries):
            groups.setdefault(setting(start), []).append((start, end))
    return max(groups.values(), key=len, default=[])


def _measured(rule: Rule, found: _Found) -> str:
    how = how_measured(found.metrics[1])
    if how is not None:
        return _HOW[how]
    devices = [str((end.record or {}).get("device") or "") for _, end in found.pairs]
    if any(device.lower().startswith("cuda") for device in devices):
        return "CUDA"
    return rule.measured or ("CPU" if all(devices) else NOTHING)


# --- Rules ---------------------------------------------------------------------------------------


def _change(rule: Rule, found: _Found) -> _Judged:
    """``up``, ``down`` and ``same``."""
    starts, ends = [pair[0] for pair in found.pairs], [pair[1] for pair in found.pairs]
    difference = paired(ends, found.metrics[1], starts, found.metrics[0])
    assert difference is not None  # every pair has both values
    start, end = mean_of(found.values(0)), mean_of(found.values(1))
    change = _change_of(rule, start, end)
    unit = found.unit
    shown = "" if change is None or not rule.relative else f" ({signed(_percent(change))})"
    ours = f"{_text(start, unit)} -> {_text(end, unit)}{shown}"
    seeds = plural(difference.seeds, "seed")
    of_seeds = f" of {seeds}" if difference.by == "task" else ""
    said = [f"The difference is {difference_text(difference, unit)}{of_seeds}."]
    if rule.comparison == "same":
        verdict = _sameness(rule, difference)
    else:
        sign = 1.0 if rule.comparison == "up" else -1.0
        missed = _misses(rule, {"from": start, "to": end, "change": change}, unit)
        if rule.significant and not _is_certain(difference, sign):
            missed.append(f"The interval must be of {MIN_PAIRS} pairs or more and not reach 0.")
        holds = sign * difference.interval.mean > 0
        verdict = NOT_REPRODUCED if not holds else DIRECTION if missed else REPRODUCED
        said += missed
    return _Judged(verdict, ours, " ".join(said))


def _change_of(rule: Rule, start: float, end: float) -> float | None:
    if not rule.relative:
        return end - start
    return end / start - 1 if start else None


def _sameness(rule: Rule, difference: Difference) -> str:
    interval = difference.interval
    if abs(interval.mean) > rule.tolerance:
        return NOT_REPRODUCED
    if max(abs(interval.low), abs(interval.high)) > rule.tolerance or interval.n < MIN_PAIRS:
        return DIRECTION
    return REPRODUCED


def _is_certain(difference: Difference, sign: float) -> bool:
    interval = difference.interval
    return interval.n >= MIN_PAIRS and min(sign * interval.low, sign * interval.high) > 0


def _outlasts(rule: Rule, found: _Found) -> _Judged:
    """``from`` runs out of memory where ``to`` does not."""
    unit = found.unit
    ends, starts = found.values(1), found.values(0)
    start_out = all(out_of_memory(entry) for entry in found.entries(0))
    texts = [_side_text(found, side) for side in (0, 1)]
    ours = f"{texts[1]}; {name_text(rule.start.method)}: {texts[0]}"
    if len(ends) < len(found.pairs):
        reason = f"{name_text(rule.end.method)} gives no value: {texts[1]}."
        return _Judged(NOT_REPRODUCED, ours, reason)
    if not start_out and len(starts) < len(found.pairs):
        reason = f"{name_text(rule.start.method)} gives no value, and not for memory: {texts[0]}."
        return _Judged(NOT_TESTABLE, ours, reason)
    end = mean_of(ends)
    if not start_out:
        less = mean_of(starts) > end
        said = "needs less memory" if less else "needs no less memory"
        reason = (
            f"{name_text(rule.start.method)} fits into memory; {name_text(rule.end.method)} {said}."
        )
        return _Judged(DIRECTION if less else NOT_REPRODUCED, ours, reason)
    missed = _misses(rule, {"to": end}, unit)
    reason = " ".join(["Only one of them runs out of memory.", *missed])
    return _Judged(DIRECTION if missed else REPRODUCED, ours, reason)


def _side_text(found: _Found, side: int) -> str:
    values = found.values(side)
    if values:
        return _text(mean_of(values), found.unit)
    entry = found.entries(side)[0]
    if out_of_memory(entry):
        return "out of memory"
    return f"undefined ({sentence_text(str(entry.get('reason', 'no reason')))})"


def _misses(rule: Rule, ours: Mapping[str, float | None], unit: str) -> list[str]:
    """A sentence for each of the paper's numbers that ours are not near."""
    missed = []
    for expected in rule.expect:
        value = ours.get(expected.of)
        near = value is not None and math.isclose(
            value, expected.value, rel_tol=1e-9, abs_tol=expected.allowed * (1 + 1e-9)
        )
        if not near:
            shown = "undefined" if value is None else _expected_number(rule, expected, value, unit)
            wanted = _expected_number(rule, expected, expected.value, unit)
            allowed = _allowed_text(rule, expected, _text(expected.allowed, unit))
            missed.append(f"{_OF[expected.of]} is {shown}, not within {allowed} of {wanted}.")
    return missed


_OF = {"from": "The start", "to": "The end", "change": "The change"}


def _expected_number(rule: Rule, expected: Expectation, value: float, unit: str) -> str:
    if expected.of == "change" and rule.relative:
        return _percent(value)
    return _text(value, unit)


def _text(value: float, unit: str) -> str:
    if unit == "bytes":
        return decimal_bytes(value)
    return number(value, unit) if unit == "share" else f"{number(value, unit)} {name_text(unit)}"


# --- The rule in words ---------------------------------------------------------------------------


def rule_text(rule: Rule) -> str:
    """What a rule demands, in words made from its data."""
    start, end = (_side_words(side) for side in (rule.start, rule.end))
    where = f"on {name_text(rule.benchmark)}"
    if rule.comparison == "same":
        text = f"{end} must equal {start} {where} within {rule.tolerance:g}"
        text += f", and so must the 95 % interval of the difference over at least {MIN_PAIRS} pairs"
    elif rule.comparison == "outlasts":
        text = f"{end} must have a value {where} where {start} runs out of memory"
    else:
        above = "above" if rule.comparison == "up" else "below"
        text = f"{end} must lie {above} {start} {where}"
    if rule.significant:
        text += f"; the 95 % interval of the difference over at least {MIN_PAIRS} pairs must not reach 0"
    for expected in rule.expect:
        wanted = _rule_number(rule, expected, expected.value)
        share = expected.share
        allowed = (
            _rule_number(rule, expected, expected.allowed) if share is None else _percent(share)
        )
        text += f"; {_OF[expected.of].lower()} within {allowed} of {wanted}"
    if rule.at_least:
        text += f"; cells with {_at_least_text(rule)}"
    return text + "."


def _allowed_text(rule: Rule, expected: Expectation, text: str) -> str:
    """How near is near enough; ``text`` is the allowed distance in the metric's unit."""
    if expected.share is not None:
        return _percent(expected.share)
    if rule.relative and expected.of == "change":
        return f"{100 * expected.allowed:.3g} percentage points"
    return text


def _rule_number(rule: Rule, expected: Expectation, value: float) -> str:
    if rule.relative and expected.of == "change":
        return _percent(value)
    in_bytes = rule.end.metrics[0].startswith("peak_bytes")
    return decimal_bytes(value) if in_bytes else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _side_words(side: Side) -> str:
    metrics = dict.fromkeys(map(name_text, side.metrics))
    return f"{' or '.join(metrics)} of {name_text(side.method)}"


def _at_least_text(rule: Rule) -> str:
    return "at least " + " and ".join(
        f"{least:g} {name_text(name)}" for name, least in rule.at_least.items()
    )


# --- As a table ----------------------------------------------------------------------------------


def claims_grid(claims: ClaimsTable) -> Table:
    """One row a claim; the reasons are the notes."""
    return Table(
        slug="claims",
        title="Claims",
        caption=f"{sentence_text(claims.paper)}: what it says, and what was measured here.",
        columns=("claim", "paper", "ours", "measured", "verdict"),
        rows=tuple(
            (sentence_text(r.claim), sentence_text(r.paper), r.ours, r.measured, r.verdict)
            for r in claims.rows
        ),
    )


def claims_document(claims: ClaimsTable, problems: Sequence[Problem] = ()) -> dict[str, Any]:
    """All of it, for programs."""
    names = ("claim", "paper", "ours", "measured", "verdict", "rule", "reason", "command")
    return {
        "paper": claims.paper,
        "claims": [
            {"id": row.slug, **{name: getattr(row, name) for name in names}} for row in claims.rows
        ],
        "unusable": [{"file": item.path, "reason": item.reason} for item in problems],
    }
