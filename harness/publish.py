"""Putting a metrics file exactly where it was asked for, without losing what stood there."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import results
from harness.atomic import atomic_write
from harness.errors import UnreadableFileError, UserError
from harness.spec import CellSpec

_SHOWN_DIFFERENCES = 4


def target_path(metrics_dir: Path, spec: CellSpec) -> Path:
    """``<metrics_dir>/<method>/<benchmark>-seed<N>.json``."""
    return results.metrics_path(metrics_dir, spec.method.name, spec.benchmark.name, spec.seed)


def check_target(path: Path, spec: CellSpec, *, overwrite: bool) -> dict[str, Any] | None:
    """Refuse, before minutes are spent, a target that the result could not or should not replace.

    Args:
        path: Where the metrics file will be written.
        spec: The cell that will be run.
        overwrite: Replace an unreadable file, or the result of another cell.

    Returns:
        The metrics document that stands there for this same cell, or None.

    Raises:
        UnreadableFileError: If something stands there that is no metrics file.
        UserError: If it is the result of another cell, or the directory cannot be written.
    """
    _check_writable(path.parent)
    existing = None
    try:
        existing = results.read_metrics(path)
    except results.MissingResultError:
        pass
    except results.ResultsError as error:
        if path.is_dir() or not overwrite:
            raise UnreadableFileError(
                f"{path} is in the way: {error.reason}.",
                hint="Move it away, or choose another --metrics-dir."
                if path.is_dir()
                else "Move it away, choose another --metrics-dir, or replace it with --overwrite "
                "(a copy is kept in the run's folder).",
            ) from error
    if existing is not None and existing["cell_id"] != spec.cell_id:
        if existing["status"] == "ok" and not overwrite:
            raise _another_cell(path, existing, spec)
        existing = None
    return existing


def _another_cell(path: Path, existing: Mapping[str, Any], spec: CellSpec) -> UserError:
    differences = _differences(existing, spec.document_head())
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
    if len(differences) > _SHOWN_DIFFERENCES:
        shown += f"; and {len(differences) - _SHOWN_DIFFERENCES} more"
    return UserError(
        f"{path} holds the result of another cell, {existing['cell_id'][:12]}; this command is cell "
        f"{spec.cell_id[:12]}. They differ in {shown}.",
        hint="Write elsewhere with --metrics-dir, or replace it with --overwrite (a copy is kept in "
        "the run's folder).",
    )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """``"budget.episodes (120 there, 4 here)"`` for each leaf that differs."""
    found = []
    for key in sorted(set(new) | (set(old) if where else set())):
        if key == "cell_id":
            continue
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += _differences(a, b, f"{where}{key}.")
        elif a != b:
            found.append(f"{where}{key} ({_short(a)} there, {_short(b)} here)")
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "..."


def _check_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"x")
    except OSError as error:
        raise UserError(
            f"The metrics directory {directory} cannot be written: {error.strerror or error}.",
            hint="Choose another one with --metrics-dir.",
        ) from error


@dataclass(frozen=True)
class Published:
    """What became of a metrics file.

    Args:
        path: The file that holds the document.
        notes: Lines to show: what was kept, what was moved and where to.
    """

    path: Path
    notes: tuple[str, ...] = ()


def publish(
    path: Path, document: Mapping[str, Any], spec: CellSpec, *, overwrite: bool, keep_in: Path
) -> Published:
    """Write the metrics file; what stood there with other content is copied into ``keep_in``.

    A failure never replaces a success of the same cell, whatever ``overwrite`` says: it stays in
    ``keep_in``, where the run has written it.

    Args:
        path: Where it goes, exactly.
        document: The metrics document.
        spec: Its cell.
        overwrite: As in ``check_target``, which is asked once more: minutes have passed.
        keep_in: The cell's folder, whose ``metrics.json`` is this document; copies go to
            ``replaced`` in it.

    Raises:
        UserError: As ``check_target``.
        ResultsError: If the file cannot be written.
    """
    existing = check_target(path, spec, overwrite=overwrite)
    succeeded = existing is not None and existing["status"] == "ok"
    if succeeded and document["status"] != "ok":
        return Published(
            keep_in / "metrics.json",
            (
                f"{path} holds a successful result of this same cell and is kept; the failure is in "
                f"{keep_in / 'metrics.json'}.",
            ),
        )
    new = results.dumps(document).encode("utf-8")
    notes = []
    if path.is_file() and (old := path.read_bytes()) != new:
        kept = keep_in / "replaced" / f"{path.stem}-{hashlib.sha256(old).hexdigest()[:12]}.json"
        atomic_write(kept, old)
        if succeeded:
            notes.append(
                f"Warning: {path} held another result of this same cell; a copy is in {kept}. Other "
                "code or another machine made it, or something here is not reproducible."
            )
        else:
            notes.append(f"{path} is replaced; what it held is kept in {kept}.")
    results.write_metrics(path, document)
    return Published(path, tuple(notes))
