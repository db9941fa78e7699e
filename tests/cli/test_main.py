"""The command's surface: help, names, bad input; nothing here runs a cell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "mlflow", "pandas", "scipy", "transformers", "tensordict", "matplotlib")


def imported(arguments: list[str], cwd: Path) -> set[str]:
    """Top-level modules that a command imports, by the interpreter's own account."""
    done = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-m", "harness.cli.main", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 50
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["agent-eval", "--help"],
        ["agent-eval", "--method", "sinkflex-rl", "--benchmark", "x"],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    assert imported(arguments, tmp_path).isdisjoint(HEAVY)


def test_a_parent_that_plans_and_reuses_a_cell_imports_nothing_heavy(reference, fake) -> None:
    directory, _ = reference
    modules = imported(fake, directory)
    assert "jsonschema" in modules  # it did read and write results
    assert modules.isdisjoint(HEAVY)


def test_help_names_every_command(cli) -> None:
    text = cli("--help").stdout
    for name in ("agent-eval", "list", "doctor"):
        assert name in text


def test_help_shows_minima_and_no_astronomic_maxima(cli) -> None:
    text = cli("agent-eval", "--help").stdout
    assert text.count("x>=") == 3
    assert "9223372036854775807" not in text


def test_list_shows_the_built_in_parts_with_versions(cli) -> None:
    listed = json.loads(cli("list", "--json").stdout)
    methods = {row["name"]: row for row in listed["methods"]}
    assert set(methods) == {
        "sinkflex-rl",
        "eager-attention",
        "no-sink",
        "dropped-sink",
        "tokens-only",
    }
    assert [row["name"] for row in listed["benchmarks"]] == ["scalemcp-mini"]
    for row in [*listed["methods"], *listed["benchmarks"]]:
        assert row["version"]
        assert row["origin"] == "built in"
        assert row["description"]
    table = cli("list").stdout
    assert all(name in table for name in methods)


def test_list_into_a_closed_pipe_is_quiet(cli) -> None:
    process = cli.start("list")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait()


def in_shell(cli, redirection: str, arguments: str, expect: int) -> str:
    """What a command says when the shell closes or fills its streams."""
    command = f"{sys.executable} -P -m harness.cli.main {arguments} {redirection}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cli.cwd,
        env=cli.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("redirection", "arguments", "expect"),
    [
        (">&-", "list", 0),
        (">/dev/full", "list", 1),
        (">/dev/full", "--help", 1),
        ("<&- >&- 2>&-", "list", 0),
    ],
)
def test_closed_and_full_outputs_end_without_a_traceback(
    cli, redirection, arguments, expect
) -> None:
    said = in_shell(cli, redirection, arguments, expect)
    assert ("No space left" in said) == ("full" in redirection)


def test_a_cell_runs_with_its_standard_streams_closed(cli, fake) -> None:
    in_shell(cli, "<&- >&- 2>&-", " ".join(fake), 0)
    assert (cli.cwd / "metrics" / "fake" / "thin-air-seed42.json").is_file()


VALID = (
    "import dataclasses\n@dataclasses.dataclass\nclass C: pass\n"
    "class V:\n  config = C()\n  def run_agent(self, suite, context): ...\n"
)
EVAL = ["agent-eval", "--method", "fake", "--benchmark", "thin-air"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["agnet-eval"], 2, ["'agnet-eval'", "Did you mean 'agent-eval'", "doctor"]),
        (["--nonsense"], 2, ["--nonsense"]),
        (["agent-eval", "--benchmark", "scalemcp-mini"], 2, ["--method", "sinkflex-rl"]),
        (["agent-eval", "--method", "no-sink"], 2, ["--benchmark", "scalemcp-mini"]),
        (["track", "sync", ".", "--tracking-uri", ""], 2, ["--tracking-uri is ''", "sqlite:///"]),
        (
            ["agent-eval", "--method", "sinkflex", "--benchmark", "scalemcp-mini"],
            2,
            ["no method named 'sinkflex'", "Did you mean 'sinkflex-rl'", "no-sink", "list"],
        ),
        (
            ["agent-eval", "--method", "no-sink", "--benchmark", "scalemcp"],
            2,
            ["no benchmark named 'scalemcp'", "Did you mean 'scalemcp-mini'"],
        ),
        ([*EVAL, "--episodes", "0"], 2, ["--episodes", "0"]),
        ([*EVAL, "--episodes", "9" * 30], 2, ["--episodes", "9" * 30, "9223372036854775807"]),
        ([*EVAL, "--episodes", "-3"], 2, ["--episodes", "-3"]),
        ([*EVAL, "--episodes", "ten"], 2, ["--episodes", "ten"]),
        ([*EVAL, "--episodes", "1e3"], 2, ["--episodes", "'1e3' is no whole number"]),
        ([*EVAL, "--metrics-dir", ""], 2, ["--metrics-dir", "'' is empty"]),
        ([*EVAL, "--runs-dir", ""], 2, ["--runs-dir", "'' is empty"]),
        ([*EVAL, "--plugin", ""], 2, ["--plugin", "'' is empty"]),
        ([*EVAL, "--updates", "-1"], 2, ["--updates", "-1"]),
        ([*EVAL, "--seed", "-1"], 2, ["--seed", "-1"]),
        ([*EVAL, "--seed", "9223372036854775808"], 2, ["--seed", "9223372036854775808"]),
        ([*EVAL, "--plugin", "absent.py"], 2, ["no plugin file", "absent.py"]),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else None,
)
def test_bad_input_gets_one_clear_message(cli, arguments, code, said) -> None:
    done = cli(*arguments, expect=code)
    for text in said:
        assert text in done.stderr
    assert done.stdout == ""
    assert not (cli.cwd / "runs").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:", ["cannot be imported", "SyntaxError"]),
        ("import no_such_module_anywhere", ["cannot be imported", "no_such_module_anywhere"]),
        ("x = 1", ["brings nothing"]),
        ("METHODS = 'sinkflex'", ["METHODS", "'sinkflex'", "not a list"]),
        ("METHODS = [object()]", ["METHODS[0]", "is no method", "name is missing"]),
        ("import sys\nsys.exit(3)", ["sys.exit(3)", "mine.py:2"]),
        ("x = 1\nraise KeyError('k')", ["KeyError: 'k'", "mine.py:2", "Correct that line"]),
        ("METHODS = (1 // 0 for _ in 'a')", ["METHODS", "ZeroDivisionError", "mine.py:1"]),
        ("class M: pass\nMETHODS = [M]", ["the class M", "Write M()"]),
        (
            "class M:\n name = property(lambda self: 1 // 0)\n version = 1\n config = {}\n"
            "METHODS = [M()]",
            [
                "name raises ZeroDivisionError",
                "version is 1, not a string",
                "config is {}, not an instance of a dataclass",
                "run_agent is missing",
            ],
        ),
        (
            "class B: name = 'b'; version = '1'; default_episodes = 2.5\nBENCHMARKS = [B()]",
            ["is no benchmark", "metric_specs is missing", "default_episodes is 2.5"],
        ),
        (
            VALID + "class M(V): name = 'no-sink'; version = '9'\nMETHODS = [M()]",
            ["'no-sink' is registered twice", "built in", "plugin "],
        ),
        (
            VALID + "class M(V): name = '../up'; version = '9'\nMETHODS = [M()]",
            ["'../up'", "is no method name"],
        ),
    ],
)
def test_a_bad_plugin_is_named_with_what_is_wrong(cli, source, said) -> None:
    plugin = cli.cwd / "mine.py"
    plugin.write_text(source)
    done = cli("list", "--plugin", plugin, expect=2)
    for text in [*said, "mine.py"]:
        assert text in done.stderr


def test_a_store_without_a_scheme_is_refused(cli, fake) -> None:
    tracked = [word for word in fake if word != "--no-track"]
    done = cli(*tracked, "--tracking-uri", "nonsense", expect=2)
    assert "--tracking-uri is 'nonsense'" in done.stderr
    assert "sqlite:///FILE" in done.stderr
    assert "MLFLOW_TRACKING_URI is" in cli(*tracked, expect=2, MLFLOW_TRACKING_URI="x").stderr
    assert not (cli.cwd / "runs").exists()


def test_a_plugin_named_twice_is_loaded_once(cli) -> None:
    plugin = cli.cwd / "mine.py"
    plugin.write_text(f"{VALID}class M(V): name = 'mine'; version = '1'\nMETHODS = [M()]")
    assert "mine" in cli("list", "--plugin", plugin, "--plugin", "./mine.py").stdout


def test_directories_that_cannot_be_written_are_refused_before_anything_runs(cli, fake) -> None:
    (cli.cwd / "file").write_text("not a directory")
    done = cli(*fake, "--metrics-dir", "file", expect=2)
    assert "cannot be written" in done.stderr
    assert "--metrics-dir" in done.stderr
    done = cli(*fake, "--runs-dir", "file/below", expect=2)
    assert "cannot be used" in done.stderr
    assert "--runs-dir" in done.stderr
    assert not list((cli.cwd).rglob("*.json"))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b'{"schema_version": 99}', b"\xff\xfe\x00"]
)
def test_a_corrupt_metrics_file_in_the_way_is_refused_and_kept(cli, fake, content) -> None:
    target = cli.cwd / "metrics" / "fake" / "thin-air-seed42.json"
    target.parent.mkdir(parents=True)
    target.write_bytes(content)
    done = cli(*fake, expect=4)
    assert "thin-air-seed42.json" in done.stderr
    assert "--overwrite" in done.stderr
    assert target.read_bytes() == content
    assert not (cli.cwd / "runs").exists()


def test_a_directory_in_place_of_the_metrics_file_is_refused(cli, fake) -> None:
    target = cli.cwd / "metrics" / "fake" / "thin-air-seed42.json"
    target.mkdir(parents=True)
    for extra in ([], ["--overwrite"]):
        done = cli(*fake, *extra, expect=4)
        assert "--overwrite" not in done.stderr
        assert "--metrics-dir" in done.stderr
