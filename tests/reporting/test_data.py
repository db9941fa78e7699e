"""Commands that reports show."""

import shlex


def test_a_cells_command_runs_it_with_its_budget(load, make):
    data = load(make.success("plain", 42, [1, 0], budget={"episodes": 7, "updates": 3}))
    assert shlex.split(data.cells[0].command) == [
        *("auto-research", "agent-eval", "--method", "plain", "--benchmark", "bench"),
        *("--seed", "42", "--episodes", "7", "--updates", "3"),
    ]


def test_a_variant_is_run_by_the_suite_that_defines_it(load, make):
    data = load(make.success("smoke-sinkflex", 42, [1, 0], benchmark="scalemcp-mini"))
    assert shlex.split(data.cells[0].command)[:4] == [
        "auto-research",
        "reproduce",
        "--suite",
        "smoke",
    ]


def test_names_are_quoted_for_the_shell(load, make):
    data = load(make.success("a; rm -rf x", 42, [1, 0]))
    assert "a; rm -rf x" in shlex.split(data.cells[0].command)
