"""What a person sees of a worker's events, as bars and as plain lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from harness.cli.display import ProgressDisplay, metric_text, size_text


@pytest.mark.parametrize("terminal", [True, False], ids=["bars", "lines"])
def test_warnings_waits_and_resumes_are_shown_once_each(terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=110, color_system=None)
    warning = {"event": "warning", "message": "state-000002.json was altered [cut]"}
    waiting = {"event": "waiting", "phase": "base", "message": "waiting for process 7"}
    resumed = {"event": "resumed", "phase": "rl", "done": 40}
    with ProgressDisplay(console) as display:
        for event in (warning, waiting, warning, waiting, resumed):
            display.on_event(event)
        display.on_event({"event": "progress", "phase": "rl", "done": 41, "total": 41})
        display.on_event(resumed)
        display.on_event({**resumed, "done": 50})
    said = stream.getvalue()
    assert said.count("Warning: state-000002.json was altered [cut]") == 1
    assert said.count("base: waiting for process 7") == 1
    assert said.count("rl: continuing after 40, from the last checkpoint") == 1
    assert said.count("rl: continuing after 50") == 1
    assert "41/41" in said


@pytest.mark.parametrize(
    "event",
    [
        {"event": "warning"},
        {"event": "warning", "message": 3},
        {"event": "waiting", "phase": "base"},
        {"event": "resumed", "phase": "rl", "done": None},
        {"event": "memory", "bytes": [1]},
        {"event": "progress", "phase": "rl", "done": "1", "total": 2},
        {},
    ],
)
def test_malformed_events_are_not_shown(event: dict[str, object]) -> None:
    stream = io.StringIO()
    with ProgressDisplay(Console(file=stream)) as display:
        display.on_event(event)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (92160, "90 KiB"), (1303003136, "1.21 GiB")],
)
def test_sizes_are_shown_with_a_binary_prefix(number: float, text: str) -> None:
    assert size_text(number) == text
    entry = {"value": number, "unit": "bytes", "n": 3, "stderr": None}
    assert metric_text(entry) == (text, "n = 3")
