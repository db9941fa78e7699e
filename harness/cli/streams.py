"""Standard streams that are closed or full: no command may crash over them."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

_OUTPUT_ERRORS = {errno.ENOSPC, errno.EIO, errno.EBADF, errno.EPIPE, errno.EDQUOT}


def open_missing_streams() -> None:
    """Give closed standard streams (``2>&-``) the null device.

    Else the next file that is opened gets the stream's number, and a child's output goes into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            stream = open(number, mode, closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
            setattr(sys, name, stream)


def is_output_error(error: OSError) -> bool:
    """Whether an error comes from a stream and not from a file with a name."""
    return error.filename is None and error.errno in _OUTPUT_ERRORS


def discard_output() -> None:
    """Send what is still buffered nowhere: flushing it at exit would fail once more."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            stream = sys.stdout if number == 1 else sys.stderr
            try:
                stream.flush()
            except OSError:
                os.dup2(null, number)
        os.close(null)
