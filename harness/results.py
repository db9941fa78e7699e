"""Result files: written atomically, read strictly.

The local JSON files are the truth of a run. Every file is validated on every write and every read,
and every failure is a :class:`ResultsError` that says which file, what is wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import strict_json
from harness.atomic import atomic_write
from harness.documents import (
    SCHEMA_VERSION,
    MissingResultError,
    NewerSchemaError,
    ResultsError,
    UnreadableResultError,
    build_metrics_document,
    build_run_record,
    failed_document,
    hint_for,
    validate_document,
)
from harness.errors import EXIT_USAGE

__all__ = [
    "SCHEMA_VERSION",
    "MissingResultError",
    "NewerSchemaError",
    "ResultsError",
    "UnreadableResultError",
    "build_metrics_document",
    "build_run_record",
    "dumps",
    "failed_document",
    "metrics_path",
    "read_lines",
    "read_metrics",
    "read_run_record",
    "write_lines",
    "write_metrics",
    "write_run_record",
]


def metrics_path(metrics_dir: Path, method: str, benchmark: str, seed: int) -> Path:
    """Where a cell's metrics file lives: ``<metrics_dir>/<method>/<benchmark>-seed<N>.json``."""
    return metrics_dir / method / f"{benchmark}-seed{seed}.json"


def dumps(document: Mapping[str, Any]) -> str:
    """The bytes-stable text of a document (see :func:`harness.strict_json.dumps`).

    Raises:
        ResultsError: If it holds NaN, infinity, keys that are not strings or other types.
    """
    try:
        return strict_json.dumps(document)
    except strict_json.StrictJSONError as error:
        raise ResultsError(None, str(error), "Only JSON data can be written to a result") from None


def _write(path: Path, text: str) -> None:
    try:
        atomic_write(path, text.encode("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResultsError(
            path,
            f"it cannot be written ({reason})",
            "Give a directory that you can write to",
            exit_code=EXIT_USAGE,
        ) from None


def _read(path: Path, kind: str) -> dict[str, Any]:
    try:
        document = strict_json.loads(strict_json.read_text(path))
    except FileNotFoundError:
        raise MissingResultError(path, "there is no such file", "Run the cell first") from None
    except (OSError, strict_json.StrictJSONError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UnreadableResultError(path, f"it cannot be read: {reason}", hint_for(kind)) from None
    validate_document(document, kind, path, reading=True)
    assert isinstance(document, dict)
    return document


def write_metrics(path: Path, document: Mapping[str, Any]) -> None:
    """Validate a metrics document and put it exactly at ``path``, atomically.

    Raises:
        ResultsError: If the document breaks the schema or ``path`` cannot be written; the file that
            was there before is then untouched.
    """
    validate_document(dict(document), "metrics", path)
    _write(path, dumps(document))


def read_metrics(path: Path) -> dict[str, Any]:
    """Read a metrics document, accepting nothing that :func:`write_metrics` would not write.

    Raises:
        MissingResultError: If there is no such file.
        NewerSchemaError: If a later version wrote it.
        ResultsError: If it is unreadable, too large, not strict JSON or breaks the schema.
    """
    return _read(path, "metrics")


def write_run_record(path: Path, record: Mapping[str, Any]) -> None:
    """Validate a run record and write it atomically.

    Raises:
        ResultsError: As :func:`write_metrics`.
    """
    validate_document(dict(record), "run", path)
    _write(path, dumps(record))


def read_run_record(path: Path) -> dict[str, Any]:
    """Read a run record strictly.

    Raises:
        ResultsError: As :func:`read_metrics`.
    """
    return _read(path, "run")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines atomically (learning curves, trajectories); non-finite floats become null.

    Raises:
        ResultsError: If a row is not JSON-ready or ``path`` cannot be written.
    """
    try:
        text = strict_json.dump_lines(strict_json.finite_or_none(row) for row in rows)
    except strict_json.StrictJSONError as error:
        raise ResultsError(path, str(error), "Only JSON data can be written to a result") from None
    _write(path, text)


def read_lines(path: Path) -> list[Any]:
    """Read JSON Lines strictly.

    Raises:
        ResultsError: If the file is missing or a line is not strict JSON.
    """
    try:
        return [strict_json.loads(line) for line in strict_json.read_text(path).split("\n") if line]
    except FileNotFoundError:
        raise MissingResultError(path, "there is no such file", "Run the cell first") from None
    except (OSError, strict_json.StrictJSONError) as error:
        raise UnreadableResultError(
            path, f"it cannot be read: {error}", "Run the cell again"
        ) from None
