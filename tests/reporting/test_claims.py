"""One claim, every verdict: it follows the data, never the file."""

import copy
import math
import shlex

import pytest

from harness.errors import UnreadableFileError, UserError
from harness.reporting.claims import VERDICTS, judge
from harness.reporting.claims_file import parse_claims, read_claims
from harness.reporting.formats import claims_markdown

MANY = [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0]
FEW = [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0]


def content(comparison="up", **rule):
    return {
        "paper": "A paper",
        "claims": [
            {
                "id": "it-helps",
                "claim": "It helps.",
                "paper": "0.25 -> 0.83",
                "command": "auto-research list",
                "rule": {
                    "comparison": comparison,
                    "benchmark": "bench",
                    "from": {"method": "old", "metrics": ["success"]},
                    "to": {"method": "new", "metrics": ["success"]},
                    **rule,
                },
            }
        ],
    }


def verdict_of(data, given):
    (row,) = judge(data, parse_claims(given)).rows
    assert row.verdict in VERDICTS
    return row


NUMBERS = [
    {"of": "from", "value": 0.25, "within": 0.05},
    {"of": "change", "value": 0.58, "within": 0.05},
]


@pytest.mark.parametrize(
    ("old", "new", "verdict", "reason"),
    [
        (FEW, MANY, "reproduced", "The difference is +0.583 [+0."),
        (FEW, [*FEW[:-1], 1], "direction reproduced", "not within 0.050 of 0.580"),
        (MANY, FEW, "not reproduced", "The difference is -0.583"),
        (FEW, FEW, "not reproduced", "The difference is 0.000"),
        (FEW, None, "not testable here", "There is no result of new on bench here."),
    ],
)
def test_the_same_claim_turns_into_each_verdict(load, make, old, new, verdict, reason):
    documents = [make.success("old", 1, old)]
    documents += [make.success("new", 1, new)] if new else []
    row = verdict_of(load(*documents), content(significant=True, expect=NUMBERS, measured="CPU"))
    assert row.verdict == verdict
    assert reason in row.reason
    assert row.measured == ("CPU" if new else "-")
    if verdict == "reproduced":
        assert row.ours == "0.250 -> 0.833"


def test_significance_needs_pairs_and_an_interval_off_zero(load, make):
    def row(old, new):
        documents = [make.success("old", 1, old), make.success("new", 1, new)]
        return verdict_of(load(*documents), content(significant=True))

    assert row(FEW, MANY).verdict == "reproduced"
    assert row([0, 0, 0, 0], [1, 1, 1, 1]).verdict == "direction reproduced"  # four pairs
    noisy = row([0, 1, 0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0, 1, 1])
    assert noisy.verdict == "direction reproduced"
    assert "must be of 6 pairs or more and not reach 0" in noisy.reason


def test_down_is_the_mirror_of_up(load, make):
    data = load(make.success("old", 1, FEW), make.success("new", 1, MANY))
    assert verdict_of(data, content("down")).verdict == "not reproduced"
    assert verdict_of(data, content("up")).verdict == "reproduced"


@pytest.mark.parametrize(
    ("new", "tolerance", "verdict"),
    [
        (MANY, 0.02, "reproduced"),
        ([*MANY[:-1], 1], 0.1, "direction reproduced"),
        (FEW, 0.1, "not reproduced"),
    ],
)
def test_same_wants_the_interval_inside_the_tolerance(load, make, new, tolerance, verdict):
    data = load(make.success("old", 1, MANY), make.success("new", 1, new))
    assert verdict_of(data, content("same", tolerance=tolerance)).verdict == verdict


MEMORY = {
    "benchmark": "memory-sweep",
    "from": {"method": "old", "metrics": ["peak_bytes_cuda_at_4096", "peak_bytes_cpu_at_4096"]},
    "to": {"method": "new", "metrics": ["peak_bytes_cuda_at_4096", "peak_bytes_cpu_at_4096"]},
}


def memory(load, make, old, new, how="cuda"):
    return load(make.sweep("old", {4096: old}, how), make.sweep("new", {4096: new}, how))


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (28.06e9, 22.52e9, "reproduced"),
        (2.806e9, 2.252e9, "direction reproduced"),  # the share holds, the sizes do not
        (28.06e9, 27.9e9, "direction reproduced"),
        (20e9, 21e9, "not reproduced"),
        (None, 21e9, "not testable here"),
    ],
)
def test_memory_falls_by_a_share(load, make, old, new, verdict):
    expect = [
        {"of": "from", "value": 28.06e9, "within_share": 0.1},
        {"of": "change", "value": -0.197, "within": 0.05},
    ]
    given = content("down", relative=True, expect=expect, **MEMORY)
    row = verdict_of(memory(load, make, old, new), given)
    assert row.verdict == verdict
    if verdict == "reproduced":
        assert row.ours == "28.06 GB -> 22.52 GB (-19.7 %)"
        assert row.measured == "CUDA"
    if old == 28.06e9 and verdict != "reproduced":
        assert "not within 5 percentage points of -19.7 %" in row.reason


def test_the_first_metric_that_both_sides_have_is_used(load, make):
    row = verdict_of(memory(load, make, 3e9, 2e9, "cpu"), content("down", **MEMORY))
    assert (row.verdict, row.measured) == ("reproduced", "CPU")


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (None, 25.5e9, "reproduced"),
        (None, 2.5e9, "direction reproduced"),
        (60e9, 25.5e9, "direction reproduced"),
        (20e9, 25.5e9, "not reproduced"),
        (None, None, "not reproduced"),
    ],
)
def test_one_method_outlasts_the_other(load, make, old, new, verdict):
    expect = [{"of": "to", "value": 25.53e9, "within_share": 0.1}]
    row = verdict_of(memory(load, make, old, new), content("outlasts", expect=expect, **MEMORY))
    assert row.verdict == verdict
    if old is None:
        assert "old: out of memory" in row.ours


def test_a_value_that_is_missing_for_another_reason_is_no_memory_shortage(load, make):
    old = make.sweep("old", {4096: None})
    old["metrics"]["peak_bytes_cuda_at_4096"]["reason"] = "no such device"
    data = load(old, make.sweep("new", {4096: 25e9}))
    assert verdict_of(data, content("outlasts", **MEMORY)).verdict == "not testable here"


def test_failed_small_and_unlike_cells_say_nothing(load, make):
    new = make.success("new", 1, MANY)
    failed = make.document("old", "bench", 1, error=("oom", "too big"))
    assert "old on bench failed: oom: too big" in verdict_of(load(failed, new), content()).reason
    data = load(make.success("old", 1, FEW), new)
    row = verdict_of(data, content(at_least={"updates": 1000}))
    assert (row.verdict, row.reason) == (
        "not testable here",
        "No result of old on bench has at least 1000 updates.",
    )
    unlike = load(make.success("old", 1, FEW, budget={"episodes": 3}), new)
    assert verdict_of(unlike, content()).verdict == "not testable here"


def test_a_run_record_says_on_what_device_it_was(load, make, tmp_path):
    documents = [make.success("old", 1, FEW), make.success("new", 1, MANY)]
    make.write_run(tmp_path / "runs", documents[1], device="cuda:0 (NVIDIA H200)")
    assert verdict_of(load(*documents), content(measured="CPU")).measured == "CUDA"


# --- The file that comes with the package ---------------------------------------------------------


def test_the_papers_claims_on_the_committed_results(make):
    from harness.reporting.data import load_report_data

    judged = judge(load_report_data(make.committed, None), read_claims())
    verdicts = {row.slug: row.verdict for row in judged.rows}
    assert verdicts["rl-without-a-value-model"] == "reproduced"
    assert verdicts["sinks-beat-a-plain-window"] == "reproduced"
    assert set(verdicts) >= {"retail-reward", "memory-4096", "memory-8192"}
    text = claims_markdown(judged)
    assert text.count("\n### ") == len(judged.rows)
    assert {(p.method, p.tokens, p.value) for p in judged.points} == {
        ("eager-attention", 4096, 28.06e9),
        ("sinkflex-rl", 4096, 22.52e9),
        ("sinkflex-rl", 8192, 25.53e9),
        ("eager-attention", 8192, None),
    }


def test_rules_and_commands_name_methods_and_suites_that_exist():
    from harness.builtins import registries
    from harness.suite import load_suite

    known = registries(())
    for claim in read_claims().claims:
        for side in (claim.rule.start, claim.rule.end):
            assert side.method in known.methods.names()
        words = shlex.split(claim.command)
        assert words[:1] == ["auto-research"]
        options = list(zip(words[2::2], words[3::2], strict=True))
        suite = load_suite(dict(options).get("--suite", "default"))
        for option, value in options:
            if option == "--method":
                assert value in (
                    suite.methods if words[1] == "reproduce" else known.methods.names()
                )


# --- Files of one's own ---------------------------------------------------------------------------


def broken(change):
    given = copy.deepcopy(content())
    change(given, given["claims"][0], given["claims"][0]["rule"])
    return given


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda top, claim, rule: top.pop("paper"), "the file lacks the key 'paper'"),
        (lambda top, claim, rule: top.update(verdicts=1), "unknown key 'verdicts'"),
        (lambda top, claim, rule: top.update(claims=[]), "claims"),
        (lambda top, claim, rule: claim.update(verdict="reproduced"), "unknown key 'verdict'"),
        (lambda top, claim, rule: claim.update(id="../x"), "claims[0].id"),
        (lambda top, claim, rule: top["claims"].append(claim), "claims[1].id is 'it-helps'"),
        (lambda top, claim, rule: claim.pop("command"), "claims[0] lacks the key 'command'"),
        (
            lambda top, claim, rule: rule.update(comparison="sideways"),
            "claims[0].rule.comparison is",
        ),
        (lambda top, claim, rule: rule.update(tolerance=0.1), "'tolerance', which only"),
        (lambda top, claim, rule: rule.update(comparison="same"), "lacks the key 'tolerance'"),
        (lambda top, claim, rule: rule["from"].update(metrics="success"), "rule.from.metrics is"),
        (lambda top, claim, rule: rule["to"].update(metrics=["a", "b"]), "rule.to.metrics has 2"),
        (
            lambda top, claim, rule: rule.update(expect=[{"of": "from", "value": 1.0}]),
            "rule.expect[0] must have 'within' or 'within_share'",
        ),
        (
            lambda top, claim, rule: rule.update(at_least={"updates": math.inf}),
            "rule.at_least.updates is inf",
        ),
        (
            lambda top, claim, rule: top.update(
                points=[{"quantity": "peak_bytes", "method": "a", "tokens": 1}]
            ),
            "points[0] must have 'value' or 'out_of_memory'",
        ),
    ],
)
def test_a_wrong_file_is_refused_and_the_key_named(change, named):
    with pytest.raises(UserError) as caught:
        parse_claims(broken(change), "mine.toml")
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith("mine.toml: ")
    assert named in caught.value.message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"There is no .*none\.toml"):
        read_claims(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("paper = [")
    with pytest.raises(UnreadableFileError, match="is not TOML"):
        read_claims(tmp_path / "bad.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * (2 * 1024**2))
    with pytest.raises(UnreadableFileError, match="larger than"):
        read_claims(tmp_path / "big.toml")
    with pytest.raises(UnreadableFileError, match="a directory"):
        read_claims(tmp_path)
