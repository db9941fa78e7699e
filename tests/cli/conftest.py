"""The real command in real processes, on parts that take no time (``fake_parts.py``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).with_name("fake_parts.py")
COMMAND = [sys.executable, "-P", "-m", "harness.cli.main"]


class Cli:
    """Runs ``auto-research`` in a directory; never lets a traceback through."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd

    def environment(self, **extra: str) -> dict[str, str]:
        dropped = {"FAKE_BEHAVIOUR", "FAKE_HOLD", "TINY_HOLD", "MLFLOW_TRACKING_URI", "COLUMNS"}
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**kept, **extra}

    def __call__(
        self, *arguments: str | Path, expect: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.cwd,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *arguments: str | Path, **env: str) -> subprocess.Popen[str]:
        """In a process group of its own, as a shell starts it."""
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=self.cwd,
            env=self.environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=_default_signals,  # noqa: PLW1509 - no threads here
        )


def _default_signals() -> None:
    """What a terminal's shell gives a program, even where these tests run under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture(scope="session")
def cli_in() -> Callable[[Path], Cli]:
    return Cli


@pytest.fixture(scope="session")
def fake() -> list[str]:
    """Arguments of the fake cell, without tracking."""
    return [
        "agent-eval",
        *("--method", "fake", "--benchmark", "thin-air"),
        *("--plugin", str(FAKE), "--no-track"),
    ]


@pytest.fixture(scope="session")
def reference(
    tmp_path_factory: pytest.TempPathFactory, fake: list[str]
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One finished run of the fake cell: its directory, and what the command said."""
    directory = tmp_path_factory.mktemp("reference")
    return directory, Cli(directory)(*fake, "--json", OMP_NUM_THREADS="1")


def only(directory: Path, pattern: str) -> Path:
    """The one path that matches."""
    found = list(directory.glob(pattern))
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="session")
def the_only() -> Callable[[Path, str], Path]:
    return only


def _wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of a condition; fails after a generous time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., Any]:
    return _wait_for
