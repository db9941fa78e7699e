"""What to type after a cell has failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_A_PLACE = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS)


def advice(error: Mapping[str, Any], command: str, cell_dir: Path) -> str:
    """What to do about a failure; repeating the command where nothing better is known.

    Args:
        error: ``{"type", "message", "traceback"}`` of the run record, with real paths.
        command: The command that continues the cell.
        cell_dir: The cell's folder.
    """
    message = error["message"]
    anew = f"{command} --force"
    if error["type"] == "CheckpointError":
        if str(cell_dir) in message:
            return (
                f"Begin anew with: {anew}\n  (what the cell has is set aside in "
                f"{cell_dir / 'attempts'})"
            )
        return f"Do what the message says, then type: {command}"
    if _speaks_of(message, _NO_SPACE):
        return f"Free some space, or give a folder on another disk with --runs-dir; then: {command}"
    if _speaks_of(message, _NOT_A_PLACE):
        return (
            "Move away what the message names (or make it writable), or give another folder with "
            f"--runs-dir; then: {command}"
        )
    return f"Try again with: {command}\n  or, if that fails in the same way, anew with: {anew}"


def _speaks_of(message: str, numbers: tuple[int, ...]) -> bool:
    """Whether an error text is one of the system's: by number, or by its words."""
    return any(f"[Errno {n}]" in message or f"({os.strerror(n)})" in message for n in numbers)
