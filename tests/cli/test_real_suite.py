"""The real benchmark, trainer and attention through the real command, at a tiny size."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scalemcp_mini.benchmark import BENCHMARK
from harness import results

TINY = Path(__file__).with_name("tiny_method.py")
METRICS = Path("metrics") / "tiny" / "scalemcp-mini-seed7.json"


@pytest.fixture(scope="module")
def command() -> list[str]:
    return [
        "agent-eval",
        *("--method", "tiny", "--benchmark", "scalemcp-mini", "--plugin", str(TINY)),
        *("--episodes", "4", "--updates", "3", "--seed", "7", "--no-track"),
    ]


def events(directory: Path) -> list[dict[str, Any]]:
    lines = [
        x for p in directory.glob("runs/tiny/*/events.jsonl") for x in p.open() if x[-2:] == "}\n"
    ]
    return [json.loads(line) for line in lines]


def living(session: int) -> list[int]:
    """Processes of a session that have not ended, by the kernel's table."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


class Held:
    """The command, started and waiting after ``hold`` with its worker and the worker's member."""

    def __init__(self, cli, command: list[str], wait_for, hold: str) -> None:
        before = sum(event["event"] == "held" for event in events(cli.cwd))
        self.process = cli.start(*command, TINY_HOLD=hold, OMP_NUM_THREADS="2")
        self.wait_for = wait_for
        wait_for(lambda: sum(e["event"] == "held" for e in events(cli.cwd)) > before)
        self.worker = [e["pid"] for e in events(cli.cwd) if e["event"] == "started"][-1]
        if sys.platform == "linux":
            assert len(living(self.worker)) == 2  # the worker leads a session of its own

    def end(self) -> tuple[int, str]:
        """Exit code and what the command said, once no process of the cell is left."""
        _, said = self.process.communicate(timeout=60)
        self.wait_for(lambda: not living(self.worker), 10)
        assert "Traceback" not in said
        return self.process.returncode, said


def test_no_interruption_changes_a_byte_or_leaves_a_process(
    cli_in, command, tmp_path, wait_for, the_only
) -> None:
    """One run straight through; one stopped in the base and in RL, killed twice, and continued."""
    straight, broken = cli_in(tmp_path / "straight"), cli_in(tmp_path / "broken")
    for cli in (straight, broken):
        cli.cwd.mkdir()
    done = straight(*command, OMP_NUM_THREADS="1")
    assert "joint success after RL" in done.stdout
    assert "resident, sum of 2 processes" in done.stdout
    for hold in ("base:2", "rl:1"):
        held = Held(broken, command, wait_for, hold)
        os.killpg(held.process.pid, signal.SIGINT)  # as a terminal does
        code, said = held.end()
        assert code == 130, said
        assert "To continue: auto-research agent-eval --method tiny" in said
        run = the_only(broken.cwd, "runs/tiny/*/run.json")
        assert results.read_run_record(run)["status"] == "interrupted"
    held = Held(broken, command, wait_for, "rl:2")
    second = broken(*command, expect=1)
    assert f"This cell is being run by process {held.process.pid} already" in second.stderr
    held.process.kill()
    held.end()
    assert results.read_run_record(run)["status"] == "running"
    assert not (broken.cwd / METRICS).exists()
    held = Held(broken, command, wait_for, "rl:3")
    os.kill(held.worker, signal.SIGKILL)
    code, said = held.end()
    assert code == 1
    assert "killed by signal 9" in said
    assert "rl: continuing after 1" in said  # held before the second was saved
    assert results.read_metrics(broken.cwd / METRICS)["status"] == "failed"
    broken(*command, OMP_NUM_THREADS="2")  # a success replaces the failure
    resumed = [e["done"] for e in events(broken.cwd) if e["event"] == "resumed"]
    assert resumed == [1, 1, 2]
    earlier = sorted(run.parent.glob("attempts/*/run.json"))
    assert [results.read_run_record(path)["status"] for path in earlier] == [
        *("interrupted", "interrupted", "running", "failed"),
    ]
    assert (broken.cwd / METRICS).read_bytes() == (straight.cwd / METRICS).read_bytes()
    document = results.read_metrics(straight.cwd / METRICS)
    assert document["status"] == "ok"
    assert document["metrics"]["policy_updates"]["value"] == 3
    memory = results.read_run_record(the_only(straight.cwd, "runs/tiny/*/run.json"))["peak_memory"]
    assert memory["processes"] == 2
    assert memory["bytes"] > 2 * 50 * 2**20
    assert memory["scope"].startswith("sum of VmHWM")
    for cli in (straight, broken):
        assert len(results.read_lines(the_only(cli.cwd, "runs/tiny/*/history.jsonl"))) == 3


def test_more_episodes_than_tasks_is_refused_before_anything_is_written(cli, command) -> None:
    too_many = [word if word != "4" else "1000000" for word in command]
    done = cli(*too_many, expect=2)
    assert "episodes is 1000000" in done.stderr
    assert f"allowed are 1 to {BENCHMARK.max_episodes}" in done.stderr
    assert not list(cli.cwd.iterdir())
