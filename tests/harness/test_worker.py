"""The worker's parts that can be watched without starting one."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from harness.cell import _unexplained_end
from harness.events import EventReader, EventWriter
from harness.launch import PINNED_ENVIRONMENT, WorkerExit, pinned_environment
from harness.worker import _describe


def test_the_pins_replace_the_callers_settings() -> None:
    caller = {
        "OMP_NUM_THREADS": "16",
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "PYTHONOPTIMIZE": "2",
        "HOME": "/home/me",
        "PYTHONPATH": "/mine",
    }
    pinned = pinned_environment(caller)
    assert PINNED_ENVIRONMENT.items() <= pinned.items()
    assert "MKL_ENABLE_INSTRUCTIONS" not in pinned
    assert "PYTHONOPTIMIZE" not in pinned
    assert pinned["HOME"] == "/home/me"
    assert pinned["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"
    assert caller["OMP_NUM_THREADS"] == "16"


def test_events_go_to_file_and_pipe_alike(tmp_path: Path) -> None:
    read, write = os.pipe()
    writer = EventWriter(tmp_path / "events.jsonl", write, attempt=3)
    writer.write(
        {"event": "progress", "phase": "rl", "done": np.int64(1), "loss": math.nan, "x": {1, 2}}
    )
    os.close(write)
    piped = EventReader().feed(os.read(read, 65536))
    os.close(read)
    assert piped == [json.loads((tmp_path / "events.jsonl").read_text())]
    assert piped[0]["done"] == 1
    assert piped[0]["loss"] is None
    assert piped[0]["attempt"] == 3


def test_a_reader_that_has_gone_does_not_stop_the_writer(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    writer = EventWriter(tmp_path / "events.jsonl", write, attempt=1)
    writer.write({"event": "a"})
    writer.write({"event": "b"})
    os.close(write)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_a_line_that_was_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "old"}\n{"event": "cut o')
    EventWriter(path, None, attempt=2).write({"event": "new"})
    lines = path.read_text().splitlines()
    assert [json.loads(line)["event"] for line in (lines[0], lines[2])] == ["old", "new"]


def test_the_reader_joins_pieces_and_skips_what_is_no_event() -> None:
    reader = EventReader()
    assert reader.feed(b'{"event": "o') == []
    assert reader.feed(b'ne"}\nnoise\n[1]\n{"event": "two"}\n{') == [
        {"event": "one"},
        {"event": "two"},
    ]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "events.jsonl", None, attempt=1)

    def work(number: int) -> None:
        for _ in range(50):
            writer.write({"event": "x", "text": str(number) * 500})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 200
    assert all(len(set(json.loads(line)["text"])) == 1 for line in lines)


@pytest.mark.parametrize(
    ("ended", "kind", "said"),
    [
        (WorkerExit(7, False, False), "exited", "exit code 7"),
        (WorkerExit(0, False, False), "exited", "left no result"),
        (WorkerExit(-9, False, False), "killed", "SIGKILL"),
        (WorkerExit(-9, False, True), "oom", "ran out of memory"),
        (WorkerExit(-11, False, False), "killed", "SIGSEGV"),
        (WorkerExit(-120, False, False), "killed", "120"),
    ],
)
def test_an_end_without_a_word_is_explained(ended: WorkerExit, kind: str, said: str) -> None:
    assert _unexplained_end(ended)[0] == kind
    assert said in _unexplained_end(ended)[1]


def test_running_out_of_memory_is_named_whoever_reports_it() -> None:
    assert _describe(MemoryError())["type"] == "oom"
    torch_says = RuntimeError(
        "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"
    )
    assert _describe(torch_says)["type"] == "oom"
    assert _describe(ValueError("x"))["type"] == "ValueError"
    assert _describe(ValueError())["message"] == "(no message)"
    json.dumps(_describe(ValueError("\udcff")), ensure_ascii=False).encode()
