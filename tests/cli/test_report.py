"""``auto-research report`` through the real command."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path):
    """A clone's results: metrics, and no run folders."""
    shutil.copytree(ROOT / "metrics", tmp_path / "metrics")
    return tmp_path


@pytest.fixture
def small(tmp_path):
    """One method's results: quick to render."""
    shutil.copytree(ROOT / "metrics" / "no-sink", tmp_path / "metrics" / "no-sink")
    return tmp_path


def test_a_clone_renders_with_no_display_and_any_backend(cli, clone):
    """H6, and what a clone lacks is said."""
    done = cli("report", MPLBACKEND="no-such-backend", DISPLAY="")
    assert "11 cells" in done.stdout
    assert "Not there: Learning curves of scalemcp-mini" in done.stderr
    for name in (
        "comparison.md",
        "comparison.csv",
        "comparison.tex",
        "claims.md",
        "peak-memory.png",
    ):
        assert (clone / "reports" / name).stat().st_size > 100


def test_report_loads_neither_torch_nor_mlflow(cli, small):
    script = (
        "import sys, runpy\n"
        "sys.argv = ['auto-research', 'report']\n"
        "try:\n    runpy.run_module('harness.cli.main', run_name='__main__')\n"
        "except SystemExit as done:\n    assert not done.code, done.code\n"
        "print([m for m in ('torch', 'mlflow', 'matplotlib.pyplot') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=small,
        env=cli.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_runs_of_real_cells_give_learning_curves(cli, fake):
    plugin = fake[fake.index("--plugin") + 1]
    cli(*fake)
    cli(*fake, "--seed", "3", expect=1, FAKE_BEHAVIOUR="raise")
    cli("report", "--plugin", plugin)
    reports = cli.cwd / "reports"
    assert (reports / "learning-curves-thin-air.svg").exists()
    comparison = (reports / "comparison.md").read_text()
    assert "fake/thin-air-seed3 failed: RuntimeError: the reward model is on fire" in comparison
    assert "1 (1 failed)" in comparison
    assert "cost of fake is undefined: no calls were made" in comparison
    assert f"--plugin {plugin}" in comparison
    cells = (reports / "cells.csv").read_text()
    assert "cpu" in cells


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--metrics-dir", "none"], "There is no none"),
        (["--against", "nobody"], "methods there: dropped-sink, eager-attention"),
        (["--output", "metrics/reports"], "lies in metrics"),
        (["--claims", "none.toml"], "There is no none.toml"),
        (["--output", ""], "'' is empty"),
    ],
)
def test_mistakes_end_in_a_line_and_exit_code_2(cli, clone, arguments, said):
    assert said in cli("report", *arguments, expect=2).stderr


def test_an_empty_folder_is_nothing_to_show(cli):
    (cli.cwd / "metrics").mkdir()
    done = cli("report", expect=2)
    assert "no metrics file" in done.stderr
    assert "auto-research reproduce" in done.stderr


def test_unreadable_files_are_named_and_the_rest_is_rendered(cli, small):
    (small / "metrics" / "no-sink" / "scalemcp-mini-seed42.json").write_text("{")
    newer = small / "metrics" / "no-sink" / "scalemcp-mini-seed43.json"
    newer.write_text(newer.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    done = cli("report", expect=4)
    assert "Not used: metrics/no-sink/scalemcp-mini-seed42.json" in done.stderr
    comparison = (small / "reports" / "comparison.md").read_text()
    assert "Files that could not be used" in comparison
    assert "schema_version 9" in comparison
    assert "no-sink" in comparison


def test_an_output_that_cannot_be_written(cli, small):
    (small / "reports").write_text("a file")
    assert "--output" in cli("report", expect=2).stderr
