"""Writing a report's folder: atomically, only what changed, and nobody else's files are touched.

``manifest.json`` lists the files that a report wrote, with their hashes. A file that the next report
no longer writes is removed if it is listed there and still has that hash; everything else in the
folder is somebody's, and is neither removed nor overwritten.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from harness import strict_json
from harness.atomic import atomic_write
from harness.errors import UserError

NAME = "manifest.json"
SCHEMA_VERSION = 1
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")


@dataclass(frozen=True)
class Written:
    """What became of a folder.

    Args:
        files: All names of the report, the manifest's among them, sorted.
        changed: Those that were written because they were missing or different.
        removed: Files of an earlier report that are gone now.
        kept: Files of an earlier report that somebody has changed since.
    """

    files: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...]


def write_files(output: Path, files: Mapping[str, bytes], *, overwrite: bool = False) -> Written:
    """Make a folder hold these files, and no others of an earlier report.

    The manifest is written first, with old and new names, and again at the end: after a kill it
    still lists all that may be ours.

    Args:
        output: The folder; made if missing.
        files: Name -> content; names are relative, ``/`` between parts.
        overwrite: Whether files that no report wrote may be replaced.

    Raises:
        UserError: If a file of these names is in the way, or the folder cannot be written.
    """
    for name in (*files, NAME):
        _check_name(name)
    if NAME in files:
        raise ValueError(f"{NAME} is the manifest's own name")
    linked = sorted(name for name in files if _through_link(output, name))
    if linked:
        raise _in_the_way(output, linked)
    before = _read(output)
    new = {name: _hash(data) for name, data in files.items()}
    try:
        changed = [name for name, data in files.items() if _is_other(output, name, data)]
        foreign = [name for name in changed if name not in before and _exists(output, name)]
        if foreign and not overwrite:
            raise _in_the_way(output, sorted(foreign))
        stale = sorted(set(before) - set(new))
        if changed or stale:
            _write_manifest(output, before | dict.fromkeys(new))
        for name in changed:
            atomic_write(output / name, files[name])
        removed, kept = _remove(output, {name: before[name] for name in stale})
        if _write_manifest(output, new):
            changed.append(NAME)
    except OSError as error:
        where = error.filename or output
        raise UserError(
            f"{where} cannot be written: {error.strerror or error}.",
            hint="Give a folder that you can write to with --output.",
        ) from None
    return Written(
        tuple(sorted((*files, NAME))), tuple(sorted(changed)), tuple(removed), tuple(kept)
    )


def _check_name(name: str) -> None:
    """Names come from this package; a slip must not write outside the folder."""
    if not all(map(_PART.fullmatch, name.split("/"))) or ".." in name.split("/"):
        raise ValueError(f"{name!r} is no name for a file of a report")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(output: Path) -> dict[str, str | None]:
    """Name -> hash of an earlier report; empty if there is none that can be read.

    The file may have been written by anybody: names that lead elsewhere are left out.
    """
    try:
        found: Any = strict_json.loads(strict_json.read_text(output / NAME))
    except (OSError, strict_json.StrictJSONError):
        return {}
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or found.get("schema_version") != SCHEMA_VERSION:
        return {}
    return {
        name: digest
        for name, digest in files.items()
        if all(map(_PART.fullmatch, name.split("/")))
        and name != NAME
        and (digest is None or isinstance(digest, str))
    }


def _write_manifest(output: Path, files: Mapping[str, str | None]) -> bool:
    """Whether it had to be written."""
    text = strict_json.dumps({"schema_version": SCHEMA_VERSION, "files": files})
    data = text.encode("utf-8")
    if not _is_other(output, NAME, data):
        return False
    atomic_write(output / NAME, data)
    return True


def _is_other(output: Path, name: str, data: bytes) -> bool:
    """Whether the file is missing or holds something else."""
    try:
        return strict_json.read_bytes(output / name, max(len(data), 1), follow=False) != data
    except (OSError, strict_json.StrictJSONError):
        return True


def _exists(output: Path, name: str) -> bool:
    path = output / name
    return path.exists() or path.is_symlink()


def _remove(output: Path, stale: Mapping[str, str | None]) -> tuple[list[str], list[str]]:
    """Remove what is as a report left it; (removed, kept)."""
    removed, kept = [], []
    for name, digest in stale.items():
        if not _exists(output, name):
            continue
        if _leads_elsewhere(output, name) or (
            digest is not None and _digest(output, name) != digest
        ):
            kept.append(name)
            continue
        (output / name).unlink()
        removed.append(name)
        _remove_empty(output, PurePosixPath(name).parent)
    return removed, kept


def _through_link(output: Path, name: str) -> bool:
    """Whether a folder between the report's and the file is a symbolic link."""
    return any((output / parent).is_symlink() for parent in PurePosixPath(name).parents[:-1])


def _leads_elsewhere(output: Path, name: str) -> bool:
    """Whether what stands there is not a file of this folder."""
    path = output / name
    return _through_link(output, name) or path.is_symlink() or not path.is_file()


def _digest(output: Path, name: str) -> str | None:
    try:
        return _hash(strict_json.read_bytes(output / name, follow=False))
    except (OSError, strict_json.StrictJSONError):
        return None


def _remove_empty(output: Path, parent: PurePosixPath) -> None:
    while parent.parts:
        try:
            (output / parent).rmdir()
        except OSError:
            return  # not empty
        parent = parent.parent


def _in_the_way(output: Path, names: list[str]) -> UserError:
    shown = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
    return UserError(
        f"{output} holds files that no report wrote, under names that this one needs: {shown}.",
        hint="Give another folder with --output, or --overwrite to replace them.",
    )
