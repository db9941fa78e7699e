"""Errors that a person caused and a person can fix: one clear message, never a traceback.

Exit codes of the command line (the gate adds its own meaning for 1 and 3):

==== =========================================
0    done
1    the cell failed, or is being run elsewhere
2    usage: a wrong option, name, path or file
4    an unreadable file is in the way
130  interrupted; the same command continues
==== =========================================
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREADABLE = 4
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """What failed, the value received, what is allowed, and the next command to type.

    Args:
        message: One or two sentences: what failed, with the value received and what is allowed.
        hint: What to do or type next, or None.
        exit_code: The process's exit code when nobody handles it.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, exit_code: int = EXIT_USAGE
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UnreadableFileError(UserError):
    """A file that must be read is truncated, not JSON, of another or a newer schema, or no file."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=EXIT_UNREADABLE)


class RegistryError(UserError):
    """A name that is unknown or taken, or a registered part that cannot be loaded."""
