"""What a failed cell's last line tells the user to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.failures import advice

CELL = Path("/home/ada/runs/m/cell")


@pytest.mark.parametrize(
    ("kind", "message", "says", "not_says"),
    [
        (
            "CheckpointError",
            f"To start over: rm -r {CELL}/checkpoint",
            "run x --force",
            "Try again",
        ),
        ("CheckpointError", "To start over: rm -r /home/ada/runs/base/1", "Do what", "--force"),
        ("OSError", "[Errno 28] No space left on device: '/a'", "Free some space", "Try again"),
        ("ResultsError", "it cannot be written (Not a directory)", "--runs-dir", "Try again"),
        ("RuntimeError", "on fire", "Try again with: run x\n", "--runs-dir"),
    ],
)
def test_the_advice_fits_the_failure(kind: str, message: str, says: str, not_says: str) -> None:
    text = advice({"type": kind, "message": message, "traceback": None}, "run x", CELL)
    assert says in text
    assert not_says not in text
