"""Files that are either absent, old, or complete: never half-written.

A reader of a file written here sees the previous content or the new content, whatever happens to the
writer (kill -9, full disk, power cut). Needs a file system whose rename is atomic (POSIX).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import stat
from pathlib import Path

_TEMP_SUFFIX = ".tmp"


def _temp_prefix(name: str) -> str:
    """Prefix of this machine's temporary files for one target (short: names may be 255 bytes long)."""
    tag = hashlib.sha256(f"{socket.gethostname()}\0{name}".encode("utf-8", "surrogateescape"))
    return f".{tag.hexdigest()[:12]}-"


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove_orphans(directory: Path, prefix: str) -> None:
    """Delete what a killed writer of the same target left behind on this machine."""
    for entry in directory.iterdir():
        if entry.name.startswith(prefix) and entry.name.endswith(_TEMP_SUFFIX):
            pid = entry.name[len(prefix) :].split("-", 1)[0]
            if pid.isdigit() and not _process_exists(int(pid)):
                entry.unlink(missing_ok=True)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step, durably.

    Writes a temporary file in the same directory, fsyncs it, renames it over ``path`` and fsyncs
    the directory. The file gets the permissions that the umask allows; missing parent directories
    are made. Leftovers of writers that were killed are removed.

    Args:
        path: Target. It must not exist, or be a regular file (a link to one is replaced by a file).
        data: Whole content.

    Raises:
        OSError: If the target is not a regular file, or the directory cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise OSError(f"the target exists and is {kind}")
    prefix = _temp_prefix(path.name)
    _remove_orphans(path.parent, prefix)
    temp = path.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}{_TEMP_SUFFIX}"
    # os.open and not tempfile: the kernel then applies the umask (tempfile forces 0600).
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    _fsync_directory(path.parent)
