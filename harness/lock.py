"""One cell, one runner: a lock that lives as long as the processes that hold it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from harness.errors import EXIT_FAILED, UserError

_GRACE_SECONDS = 2.0


class CellBusyError(UserError):
    """Another process runs the cell."""


def is_busy(cell_dir: Path) -> bool:
    """Whether a living process runs the cell; looks without claiming it."""
    try:
        descriptor = os.open(cell_dir / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared: two lookers do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class CellLock:
    """Claims a cell's folder by ``flock`` on its ``lock`` file.

    The kernel drops the lock when the last process that holds the descriptor is gone, so that
    a killed owner leaves nothing to clean up. The worker inherits the descriptor: a cell stays
    claimed until its worker, too, has ended. The file itself stays; deleting it would let two
    processes lock two different files of the same name.

    Args:
        cell_dir: The cell's folder; made if missing.

    Raises:
        CellBusyError: On entering, if another process holds the lock; the message names it.
    """

    def __init__(self, cell_dir: Path) -> None:
        self._path = cell_dir / "lock"
        self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """The locked file's descriptor while the lock is held."""
        return self._descriptor

    def __enter__(self) -> CellLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        # The grace lets the worker of an owner that was just killed notice and end.
        deadline = time.monotonic() + _GRACE_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                    os.close(descriptor)
                    raise self._taken(owner) from None
            except BaseException:
                os.close(descriptor)
                raise
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def _taken(self, owner: str) -> CellBusyError:
        who = f"process {owner}" if owner.isdigit() else "another process"
        return CellBusyError(
            f"This cell is being run by {who} already ({self._path.parent}).",
            hint="Wait until it is done, or stop it (kill -INT "
            f"{owner if owner.isdigit() else 'PID'}) and run the same command again.",
            exit_code=EXIT_FAILED,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
