"""The numbers of the tables, and that nothing in a name gets out of its cell."""

import csv
import io

import pytest

from harness.reporting import formats
from harness.reporting.data import Table
from harness.reporting.tables import cells_table, comparison_tables
from harness.reporting.text import csv_text, latex, markdown, markdown_block, number, signed, slugs

HOSTILE = "a|b_*x*`c`<script>@me$x$\\ &\n::error::"


def by_slug(data):
    return {table.slug: table for table in comparison_tables(data)}


def test_comparison_has_means_intervals_differences_floor_ceiling_and_n(load, make):
    table = by_slug(load(*make.three_methods()))["comparison-bench"]
    assert table.columns == (
        "method",
        "success",
        "minus eager-attention",
        "before training",
        "gain",
        "average_cost",
        "seeds",
        "tasks a seed",
    )
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == [
        "do nothing (floor)",
        "eager-attention",
        "plain",
        "windowed",
        "expert (ceiling)",
    ]
    assert rows["windowed"][1] == "0.792 [0.612, 0.971]"
    assert rows["windowed"][2].startswith("+0.250 [-0.0")
    assert rows["windowed"][2].endswith("], 24 tasks")
    assert rows["plain"][1] == "0.250"
    assert rows["expert (ceiling)"][1] == "1.000 [1.000, 1.000]"
    assert rows["windowed"][-2:] == ("3", "8")
    assert rows["eager-attention"][2] == "-"


def test_best_is_the_better_mean_by_the_metrics_own_direction_ties_included(load, make):
    tables = by_slug(load(*make.three_methods()))
    comparison, metrics = tables["comparison-bench"], tables["metrics-bench"]
    assert [comparison.rows[row][0] for row, column in comparison.best] == ["windowed"]
    best = {(metrics.rows[row][0], metrics.columns[column]) for row, column in metrics.best}
    assert ("average_cost", "plain (1 seed)") in best  # lower is better
    assert {method for metric, method in best if metric == "base_success"} == {
        "eager-attention (3 seeds)",
        "plain (1 seed)",
        "windowed (3 seeds)",
    }
    assert not any(metric.startswith(("expert", "do_nothing")) for metric, _ in best)


def test_failed_cells_are_shown_with_their_reason_and_are_in_no_mean(load, make):
    fine = make.three_methods()
    gone = make.document("windowed", "bench", 45, error=("oom", "killed at 3 GB"))
    all_gone = make.document("broken", "bench", 42, error=("ValueError", "no\nluck"))
    tables = by_slug(load(*fine, gone, all_gone))
    rows = {row[0]: row for row in tables["comparison-bench"].rows}
    assert rows["windowed"][1] == "0.792 [0.612, 0.971]"
    assert rows["windowed"][-2] == "3 (1 failed)"
    assert rows["broken"][1] == "failed (1 seed)"
    assert "windowed/bench-seed45 failed: oom: killed at 3 GB" in tables["comparison-bench"].notes
    assert {row[0]: row[1] for row in tables["failed"].rows} == {
        "broken/bench-seed42": "ValueError: no luck",
        "windowed/bench-seed45": "oom: killed at 3 GB",
    }
    assert "agent-eval --method broken" in tables["failed"].rows[0][2]


def test_a_benchmark_whose_cells_all_failed_has_a_table_too(load, make):
    tables = by_slug(load(make.document("broken", "bench", 42, error=("killed", "signal 9"))))
    assert tables["comparison-bench"].rows == (("broken", "failed (1 seed)", "0"),)


def test_overview_sets_methods_against_benchmarks(load, make):
    second = make.success("windowed", 42, [1, 1, 1, 1], benchmark="other")
    table = by_slug(load(*make.three_methods(), second))["overview"]
    assert table.columns == ("method", "bench: success", "other: success")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["windowed"] == ("0.792 [0.612, 0.971], n = 3", "1.000, n = 1")
    assert rows["plain"] == ("0.250, n = 1", "-")
    assert next(iter(rows)) == "do nothing (floor)"
    assert list(rows)[-1] == "expert (ceiling)"


def test_an_undefined_metric_says_why(load, make):
    made = make.success("a", 1, [1, 0, 1, 0])
    made["metrics"]["delay"] = make.entry(None, unit="s", direction="minimize", reason="no clock")
    table = by_slug(load(made))["metrics-bench"]
    row = next(row for row in table.rows if row[0] == "delay")
    assert row[1:] == ("s", "lower", "undefined")
    assert "delay of a is undefined: no clock" in table.notes


def test_results_of_two_versions_of_a_method_are_called_so(load, make):
    data = load(make.success("a", 1, [1, 0, 1, 0]), make.success("a", 2, [1, 0, 1, 0], version="2"))
    assert "a mixes results of its versions 1 and 2." in by_slug(data)["comparison-bench"].notes


def test_without_results_of_the_baseline_there_are_no_differences(load, make):
    data = load(*make.three_methods(), against="nobody")
    table = by_slug(data)["comparison-bench"]
    assert "minus nobody" not in table.columns
    assert "No differences: nobody has no result here." in table.notes


def test_cells_show_what_their_run_record_measured(load, make, tmp_path):
    made = make.three_methods()
    make.write_run(tmp_path / "runs", made[0])
    table = cells_table(load(*made))
    rows = {row[0]: row for row in table.rows}
    assert rows["windowed/bench-seed42"][2:] == (
        "success 0.750 ± 0.100, n = 8",
        "62",
        "1.000 GiB" if "1.000 GiB" in rows["windowed/bench-seed42"] else "1 GiB",
        "cpu (AVX2)",
    )
    assert rows["plain/bench-seed42"][3:] == ("-", "-", "-")
    assert "No run record here for 6 of 7 cells." in table.notes


def test_names_from_files_get_out_of_no_format(load, make):
    made = make.success("plain", 42, [1, 0, 1, 0])
    made["metrics"][HOSTILE] = make.entry(0.5)
    failed = make.document("bad", "bench", 42, error=("E|x", "=cmd()|<b>\n## heading\x1b[31m"))
    data = load(made, failed)
    for table in comparison_tables(data):
        text = formats.markdown_section(table)
        grid = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in grid} == {len(table.columns) + 1}
        assert "<script>" not in text
        assert "<b>" not in text
        assert "\x1b" not in text
        assert not any(line.startswith("## heading") for line in text.splitlines())
        tex = formats.latex_table(table)
        assert "\x1b" not in tex
        assert tex.count("\\\\") == len(table.rows) + 1
    rows = list(csv.reader(io.StringIO(formats.tidy_csv(data, headline_only=False))))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert any("::error::" in row[1] and "\n" not in row[1] for row in rows)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+x", "'+x"),
        ("-cmd", "'-cmd"),
        ("-0.5", "-0.5"),
        ("plain", "plain"),
    ],
)
def test_csv_holds_no_formula(text, safe):
    assert csv_text(text) == safe


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("joint_success [0.1, 0.2]", "joint_success [0.1, 0.2]"),
        ("[1](http://evil)", r"\[1\](http&#58;//evil)"),
        ("[1]: http://evil", r"\[1\]: http&#58;//evil"),
        ("![x](y)", r"!\[x\](y)"),
        ("<img src=x>", "&lt;img src=x>"),
        ("_a_ *b* `c` ~d~ $e$", r"\_a\_ \*b\* \`c\` \~d\~ \$e\$"),
        ("www.evil.com @you", "www&#46;evil.com &#64;you"),
        ("mean@1", "mean@1"),
        ("a|b", "a&#124;b"),
    ],
)
def test_markdown_shows_text_as_it_is(text, safe):
    assert markdown(text) == safe


@pytest.mark.parametrize("text", ["# x", "- x", "1. x", "+ x", "> x", "===", "12) x"])
def test_no_text_begins_a_markdown_block(text):
    assert "\\" in markdown_block(text)


def test_latex_escapes_its_own_characters():
    assert latex(r"a_b & 5% #1 {x} ~ ^ \end") == (
        r"a\_b \& 5\% \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}end"
    )


def test_bold_survives_the_escapes():
    table = Table("t", "T", "C", ("a", "b"), (("x", "1|2"),), frozenset({(0, 1)}))
    assert "**1&#124;2**" in formats.markdown_table(table)
    assert r"\textbf{1\textbar{}2}" in formats.latex_table(table)
    assert formats.csv_table(table) == "a,b\nx,1|2\n"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.60833, "share", "0.608"),
        (-0.0001, "share", "0.000"),
        (92160.0, "bytes", "90"),
        (13.258, "calls", "13.26"),
        (246.0, "groups", "246"),
        (2.23e-5, "nats", "2.23e-05"),
        (1.7e308, "x", "1.7e+308"),
        (float("inf"), "x", "inf"),
    ],
)
def test_numbers_as_shown(value, unit, text):
    assert number(value, unit) == text


def test_signs_stand_before_differences_only_where_there_is_one():
    assert [signed(text) for text in ("0.5", "-0.5", "0.000", "0")] == [
        "+0.5",
        "-0.5",
        "0.000",
        "0",
    ]


def test_slugs_are_safe_and_tell_names_apart():
    made = slugs(["../x", "a b", "a/b", "", "Ü"])
    assert len(set(made)) == 5
    assert all(slug and set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for slug in made)


EXTREMES = [1.7e308, -1.7e308, 5e-324, -0.0, 1e154, 10**300, None]


@pytest.mark.parametrize("unit", ["share", "bytes", "$%"])
def test_no_number_breaks_a_table(load, make, unit):
    def cell(method, seed, values):
        metrics = {
            f"m{i}": make.entry(v, unit=unit, reason=None if v is not None else "oom")
            for i, v in enumerate(values)
        }
        samples = {f"m{i}": [v] * 2 for i, v in enumerate(values) if v is not None}
        return make.document(method, "bench", seed, metrics, samples=samples)

    data = load(
        *(cell("eager-attention", seed, EXTREMES) for seed in (1, 2)),
        *(cell("other", seed, EXTREMES[::-1]) for seed in (1, 2)),
    )
    for table in [*comparison_tables(data), cells_table(data)]:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert formats.markdown_table(table).count("\n") == len(table.rows) + 2
    rows = list(csv.DictReader(io.StringIO(formats.tidy_csv(data, headline_only=False))))
    assert len(rows) == 2 * len(EXTREMES)
    assert not {"nan", "inf", "-inf"} & {value for row in rows for value in row.values()}
