"""The real benchmark, trainer and attention through the real command, at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

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


def updates_done(directory: Path) -> bool:
    for path in directory.glob("runs/tiny/*/events.jsonl"):
        lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
        if any(e.get("phase") == "rl" and e["done"] >= 1 for e in map(json.loads, lines)):
            return True
    return False


def test_kill_9_and_other_threads_change_no_byte_of_a_real_run(
    cli_in, command, tmp_path, wait_for, the_only
) -> None:
    """Base, evaluation, RL: one run straight through, one killed half-way and continued."""
    straight, broken = cli_in(tmp_path / "straight"), cli_in(tmp_path / "broken")
    for cli in (straight, broken):
        cli.cwd.mkdir()
    done = straight(*command, OMP_NUM_THREADS="1")
    assert "joint success after RL" in done.stdout
    process = broken.start(*command, OMP_NUM_THREADS="2")
    wait_for(lambda: updates_done(broken.cwd) or process.poll() is not None)
    process.kill()
    process.communicate()
    broken(*command, OMP_NUM_THREADS="2")
    assert (broken.cwd / METRICS).read_bytes() == (straight.cwd / METRICS).read_bytes()
    document = results.read_metrics(straight.cwd / METRICS)
    assert document["status"] == "ok"
    assert document["metrics"]["policy_updates"]["value"] == 3
    curves = [
        results.read_lines(the_only(cli.cwd, "runs/tiny/*/history.jsonl"))
        for cli in (straight, broken)
    ]
    assert [len(curve) for curve in curves] == [3, 3]


def test_more_episodes_than_tasks_is_refused_before_anything_is_written(cli, command) -> None:
    too_many = [word if word != "4" else "1000000" for word in command]
    done = cli(*too_many, expect=2)
    assert "episodes is 1000000" in done.stderr
    assert f"allowed are 1 to {BENCHMARK.max_episodes}" in done.stderr
    assert not list(cli.cwd.iterdir())
