"""``auto-research reproduce`` in real processes, on parts that take no time."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).with_name("fake_parts.py")
SUITE = """
methods = ["fake"]
benchmarks = ["thin-air"]
seeds = [1, 2]
"""


@pytest.fixture
def matrix(cli: Any) -> list[str]:
    (cli.cwd / "suite.toml").write_text(SUITE)
    return ["reproduce", "--suite", "suite.toml", "--plugin", str(FAKE), "--no-track"]


def published(cwd: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(cwd)): path.read_bytes()
        for path in sorted((cwd / "metrics").rglob("*.json"))
    }


def test_a_second_run_skips_everything_and_changes_no_byte(cli: Any, matrix: list[str]) -> None:
    assert "2 to run" in cli(*matrix, "--dry-run").stdout
    cli(*matrix)
    first = published(cli.cwd)
    assert list(first) == [f"metrics/fake/thin-air-seed{seed}.json" for seed in (1, 2)]
    again = cli(*matrix)
    assert "2 finished already" in again.stdout
    assert published(cli.cwd) == first
    (cli.cwd / "metrics/fake/thin-air-seed1.json").unlink()
    cli(*matrix, FAKE_BEHAVIOUR="raise")  # published again from its folder: nothing is run
    assert published(cli.cwd) == first


def test_a_failure_stops_no_other_cell_and_ends_with_its_command(
    cli: Any, matrix: list[str]
) -> None:
    done = cli(*matrix, expect=1, FAKE_BEHAVIOUR="raise")
    assert "2 of 2 cells failed" in done.stderr
    assert "the reward model is on fire" in done.stderr
    assert "--seed 2 --retry-failed" in done.stderr
    still = cli(*matrix, "--json", expect=1)
    assert [cell["status"] for cell in json.loads(still.stdout)["cells"]] == ["failed"] * 2
    cli(*matrix, "--retry-failed")
    documents = [json.loads(data) for data in published(cli.cwd).values()]
    assert [document["status"] for document in documents] == ["ok", "ok"]


def test_a_killed_parent_and_a_killed_worker_are_made_up_for(
    cli: Any, cli_in: Any, matrix: list[str], tmp_path: Path, wait_for: Any
) -> None:
    parent = cli.start(*matrix, FAKE_HOLD="2")
    walk = "runs/fake/*/walk.json"
    wait_for(lambda: any(len(json.loads(p.read_text())) == 2 for p in cli.cwd.glob(walk)))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    plan = json.loads(cli(*matrix, "--dry-run", "--json").stdout)
    assert "resume" in {cell["state"] for cell in plan["cells"]}
    killed = cli(*matrix, expect=1, FAKE_BEHAVIOUR="kill")
    assert "SIGKILL" in killed.stderr
    cli(*matrix)
    other = tmp_path / "undisturbed"
    other.mkdir()
    (other / "suite.toml").write_text(SUITE)
    cli_in(other)(*matrix, "--jobs", "2")
    assert published(cli.cwd) == published(other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("seedz = [1]", "seedz"),
        ("[budget.thin-air]\nepisodes = 0", "budget.thin-air.episodes"),
        ("[variants.x]\nmethod = 'fakke'", "variants.x.method"),
        ("[[override]]\nseed = 3", "override[0].seed"),
        ("seeds = 4", "no TOML"),
    ],
)
def test_a_wrong_suite_names_the_key(cli: Any, matrix: list[str], change: str, said: str) -> None:
    (cli.cwd / "suite.toml").write_text(f"{SUITE}{change}\n")
    done = cli(*matrix, "--dry-run", expect=4 if said == "no TOML" else 2)
    assert said in done.stderr


def test_unknown_suites_and_cells_are_named(cli: Any, matrix: list[str]) -> None:
    assert "Did you mean 'smoke'" in cli("reproduce", "--suite", "smok", expect=2).stderr
    assert "it has 1, 2" in cli(*matrix, "--seed", "7", expect=2).stderr
