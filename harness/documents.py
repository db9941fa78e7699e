"""Result documents: what a metrics file and a run record hold, built and checked in memory.

A metrics document holds nothing that differs between two runs of one cell: no time, host, path or
package version. Those go into the run record. Both follow a committed JSON Schema
(``harness/schemas``). :mod:`harness.results` puts them on disk and reads them back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import EXIT_FAILED, EXIT_UNREADABLE, EXIT_USAGE, UserError
from harness.schema_check import first_violation
from methods.base import MetricSpec, MetricValue

SCHEMA_VERSION = 1
MAX_ERROR_MESSAGE = 4000
"""Characters of an error message that a metrics file keeps."""

_BOUND_SLACK = 1e-9
"""Relative slack on a metric's bounds: a mean of ones may come out as 1.0000000000000002."""


class ResultsError(UserError):
    """A result file (or the data for one) that cannot be used.

    Args:
        path: The file, or None while the data is not in a file yet.
        reason: What is wrong, in a sentence without a full stop.
        hint: What to do about it, or to type next.
        exit_code: The process's exit code when nobody handles it.
    """

    def __init__(
        self, path: Path | None, reason: str, hint: str, *, exit_code: int = EXIT_FAILED
    ) -> None:
        self.path = path
        self.reason = reason
        where = "metrics" if path is None else str(path)
        super().__init__(f"{where}: {reason}.", hint=f"{hint}.", exit_code=exit_code)


class UnreadableResultError(ResultsError):
    """The file is there and cannot be used: truncated, not strict JSON, of another schema."""

    def __init__(self, path: Path | None, reason: str, hint: str) -> None:
        super().__init__(path, reason, hint, exit_code=EXIT_UNREADABLE)


class NewerSchemaError(UnreadableResultError):
    """The file was written by a later version of this package."""


class MissingResultError(ResultsError):
    """There is no such file."""

    def __init__(self, path: Path | None, reason: str, hint: str) -> None:
        super().__init__(path, reason, hint, exit_code=EXIT_USAGE)


def validate_document(
    document: Any, kind: str, path: Path | None, *, reading: bool = False
) -> None:
    """Raise a ResultsError for the first thing in ``document`` that its schema does not allow."""
    wrong_class = UnreadableResultError if reading else ResultsError
    if not isinstance(document, dict):
        held = type(document).__name__
        raise wrong_class(path, f"it holds a {held}, not an object", hint_for(kind))
    version = document.get("schema_version")
    if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION:
        raise NewerSchemaError(
            path,
            f"it has schema_version {version}, and this version reads up to {SCHEMA_VERSION}",
            "Install a newer auto-research-harness",
        )
    violation = first_violation(document, kind, SCHEMA_VERSION)
    if violation is not None:
        raise wrong_class(path, violation, hint_for(kind))


def hint_for(kind: str) -> str:
    """What to do about a file of this kind that cannot be used."""
    noun = "metrics file" if kind == "metrics" else "run record"
    return f"Give a {noun} written by auto-research, or move this one away and run the cell again"


def _number(value: Any) -> float | None:
    """A finite Python float, or None; accepts NumPy scalars without importing NumPy.

    Every number becomes a float, so that 1 and 1.0 give the same bytes; -0.0 becomes 0.0.
    """
    number = float(value)
    return number + 0.0 if math.isfinite(number) else None


def _non_finite(value: Any) -> str:
    number = float(value)
    return "NaN" if math.isnan(number) else "+infinity" if number > 0 else "-infinity"


def _check_bounds(spec: MetricSpec, value: float) -> None:
    slack = _BOUND_SLACK * max(1.0, abs(value))
    below = spec.lower is not None and value < spec.lower - slack
    above = spec.upper is not None and value > spec.upper + slack
    if below or above:
        low = "-infinity" if spec.lower is None else spec.lower
        high = "infinity" if spec.upper is None else spec.upper
        raise ResultsError(
            None,
            f"metric {spec.name!r} is {value!r} {spec.unit}, outside its bounds {low} to {high}",
            "Fix the benchmark that measured it, or the bounds in its MetricSpec",
        )


def _metric_entry(spec: MetricSpec, measured: MetricValue) -> dict[str, Any]:
    """One entry of ``metrics``: non-finite numbers become null, with the reason beside them."""
    reasons = [measured.reason] if measured.reason else []
    value = None if measured.value is None else _number(measured.value)
    if measured.value is not None and value is None:
        reasons.append(f"value was {_non_finite(measured.value)}")
    stderr = None if measured.stderr is None else _number(measured.stderr)
    if measured.stderr is not None and stderr is None:
        reasons.append(f"stderr was {_non_finite(measured.stderr)}")
    if value is None and not reasons:
        raise ResultsError(
            None,
            f"metric {spec.name!r} has no value and no reason",
            "Give MetricValue(value=None, n=..., reason='why it is undefined')",
        )
    if value is not None:
        _check_bounds(spec, value)
    entry: dict[str, Any] = {
        "value": value,
        "unit": spec.unit,
        "direction": spec.direction,
        "n": int(measured.n),
        "stderr": stderr,
    }
    if reasons:
        entry["reason"] = "; ".join(reasons)
    return entry


def _check_names(specs: Mapping[str, MetricSpec], values: Mapping[str, MetricValue]) -> None:
    """Every declared metric is there and nothing else: a vanished metric must not go unnoticed."""
    renamed = sorted(key for key, spec in specs.items() if key != spec.name)
    missing = sorted(set(specs) - set(values))
    undeclared = sorted(set(values) - set(specs))
    if renamed:
        raise ResultsError(
            None, f"MetricSpec.name differs from its key for {renamed}", "Make the two equal"
        )
    if missing:
        raise ResultsError(
            None,
            f"declared metrics are missing: {', '.join(missing)}",
            "Report each one, as MetricValue(value=None, n=0, reason=...) where it is undefined",
        )
    if undeclared:
        raise ResultsError(
            None,
            f"metrics without a MetricSpec: {', '.join(undeclared)}",
            "Declare them in the benchmark's metric_specs (unit, direction, bounds)",
        )


def build_metrics_document(
    *,
    cell_id: str,
    method: Mapping[str, Any],
    benchmark: Mapping[str, Any],
    seed: int,
    budget: Mapping[str, Any],
    specs: Mapping[str, MetricSpec],
    values: Mapping[str, MetricValue],
    samples: Mapping[str, Sequence[float | None]],
) -> dict[str, Any]:
    """The metrics document of a cell that finished.

    Args:
        cell_id: Hex hash of the cell's canonical spec.
        method: ``{"name", "version", "config"}``; the config is JSON-ready.
        benchmark: ``{"name", "version", "data_fingerprint"}``.
        seed: The cell's seed.
        budget: For example ``{"episodes": 120, "updates": 120}``.
        specs: The benchmark's declared metrics.
        values: One measured value for every declared metric, and no other. A non-finite value or
            stderr becomes null, and ``reason`` says so.
        samples: Per-episode numbers in task order; non-finite ones become null.

    Raises:
        ResultsError: If a metric is missing, undeclared, out of its bounds or undefined without a
            reason, or the document breaks the schema.
    """
    _check_names(specs, values)
    document = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell_id,
        "method": dict(method),
        "benchmark": dict(benchmark),
        "seed": seed,
        "budget": dict(budget),
        "status": "ok",
        "metrics": {name: _metric_entry(specs[name], values[name]) for name in specs},
        "samples": {
            name: [None if item is None else _number(item) for item in column]
            for name, column in samples.items()
        },
        "error": None,
    }
    validate_document(document, "metrics", None)
    return document


def _stable_message(message: str) -> str:
    """An error text without what differs from run to run (addresses) or breaks JSON (surrogates)."""
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    text = re.sub(r"\b0x[0-9a-fA-F]{6,}\b", "0x...", text)
    text = "".join(char for char in text if char.isprintable() or char in "\n\t")
    return text if len(text) <= MAX_ERROR_MESSAGE else text[:MAX_ERROR_MESSAGE] + " [cut]"


def failed_document(
    *,
    cell_id: str,
    method: Mapping[str, Any],
    benchmark: Mapping[str, Any],
    seed: int,
    budget: Mapping[str, Any],
    error_type: str,
    message: str,
) -> dict[str, Any]:
    """The metrics document of a cell that failed: no metrics, and the reason.

    Args:
        cell_id: As in :func:`build_metrics_document`, like the next four.
        method: Name, version and config.
        benchmark: Name, version and data fingerprint.
        seed: The cell's seed.
        budget: Episodes and updates.
        error_type: Short and stable, for example ``"ValueError"``, ``"killed"`` or ``"oom"``.
        message: What happened; addresses and control characters are removed, length is bounded.

    Raises:
        ResultsError: If the document breaks the schema.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell_id,
        "method": dict(method),
        "benchmark": dict(benchmark),
        "seed": seed,
        "budget": dict(budget),
        "status": "failed",
        "metrics": {},
        "samples": {},
        "error": {"type": error_type, "message": _stable_message(message)},
    }
    validate_document(document, "metrics", None)
    return document


def build_run_record(
    *,
    cell_id: str,
    status: str,
    attempt: int = 1,
    started_at: str | None = None,
    finished_at: str | None = None,
    durations: Mapping[str, float | None] | None = None,
    argv: Sequence[str] | None = None,
    git_commit: str | None = None,
    git_dirty: bool | None = None,
    python: str | None = None,
    platform: str | None = None,
    packages: Mapping[str, str | None] | None = None,
    device: str | None = None,
    threads: int | None = None,
    environment: Mapping[str, str | None] | None = None,
    numerics_fingerprint: str | None = None,
    peak_memory: Mapping[str, Any] | None = None,
    mlflow_run_id: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The run record of one attempt at a cell; every key is there, null where unmeasured.

    Args:
        cell_id: Hex hash of the cell's canonical spec.
        status: ``running``, ``ok``, ``failed`` or ``interrupted``.
        attempt: 1 for the first start of this cell in this folder, 2 after a resume, and so on.
        started_at: ISO 8601 with zone, like ``finished_at``.
        finished_at: None while running.
        durations: Seconds a phase.
        argv: The command as typed.
        git_commit: Commit of the code, and ``git_dirty`` whether it had changes.
        git_dirty: None outside a checkout.
        python: Version of the interpreter.
        platform: Operating system and machine.
        packages: Versions of the packages that matter.
        device: For example ``"cpu (AVX2)"``.
        threads: Torch threads of the worker.
        environment: The pinned variables as the worker saw them.
        numerics_fingerprint: Hash of a fixed set of float computations.
        peak_memory: ``bytes`` (positive, or None where unmeasured; never 0), ``scope`` (what was
            measured and how) and ``processes`` (how many it covers).
        mlflow_run_id: Where the mirror is, if it was made.
        extra: Anything else, JSON-ready.

    Raises:
        ResultsError: If the record breaks the schema.
    """
    record = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell_id,
        "attempt": attempt,
        "status": status,
        "started_at": started_at,
        "finished_at": finished_at,
        "durations": dict(durations or {}),
        "argv": None if argv is None else list(argv),
        "git": {"commit": git_commit, "dirty": git_dirty},
        "python": python,
        "platform": platform,
        "packages": dict(packages or {}),
        "device": device,
        "threads": threads,
        "environment": dict(environment or {}),
        "numerics_fingerprint": numerics_fingerprint,
        "peak_memory": {"bytes": None, "scope": None, "processes": None, **(peak_memory or {})},
        "mlflow_run_id": mlflow_run_id,
        "extra": dict(extra or {}),
    }
    validate_document(record, "run", None)
    return record
