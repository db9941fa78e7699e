"""``auto-research claims`` through the real command."""

import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERDICTS = {"reproduced", "direction reproduced", "not reproduced", "not testable here"}


@pytest.fixture
def clone(tmp_path):
    shutil.copytree(ROOT / "metrics", tmp_path / "metrics")
    return tmp_path


def test_every_claim_has_a_verdict_by_a_rule(cli, clone):
    document = json.loads(cli("claims", "--format", "json").stdout)
    assert document["paper"].startswith("SinkFlex-RL")
    assert {claim["verdict"] for claim in document["claims"]} <= VERDICTS
    assert all(claim["rule"] and claim["reason"] for claim in document["claims"])
    by_id = {claim["id"]: claim for claim in document["claims"]}
    assert by_id["memory-4096"]["verdict"] == "not testable here"
    assert by_id["sinks-beat-a-plain-window"]["verdict"] == "reproduced"


def test_verdicts_follow_the_results(cli, clone):
    """Swap two methods' results: what was reproduced no longer is."""
    for seed in (42, 43, 44):
        ours, theirs = (
            clone / "metrics" / method / f"scalemcp-mini-seed{seed}.json"
            for method in ("sinkflex-rl", "no-sink")
        )
        a, b = json.loads(ours.read_text()), json.loads(theirs.read_text())
        a["method"], b["method"] = b["method"], a["method"]
        ours.write_text(json.dumps(b))
        theirs.write_text(json.dumps(a))
    document = json.loads(cli("claims", "--format", "json").stdout)
    by_id = {claim["id"]: claim["verdict"] for claim in document["claims"]}
    assert by_id["sinks-beat-a-plain-window"] == "not reproduced"


def test_table_and_markdown_hold_every_claim(cli, clone):
    markdown = cli("claims", "--format", "markdown").stdout
    table = cli("claims").stdout
    assert markdown.count("\n### ") == 7
    assert table.count("reproduced") + table.count("not testable") == 7
    assert "0.233 -> 0.608" in table
    assert "\x1b" not in table


def test_a_file_of_claims_of_ones_own(cli, clone):
    text = (ROOT / "harness" / "reporting" / "claims.toml").read_text()
    (clone / "mine.toml").write_text(text.replace('comparison = "outlasts"', 'comparison = "wins"'))
    said = cli("claims", "--claims", "mine.toml", expect=2).stderr
    assert "mine.toml: claims[2].rule.comparison is 'wins'" in said
    (clone / "mine.toml").write_text("= 1")
    assert "is not TOML" in cli("claims", "--claims", "mine.toml", expect=4).stderr


def test_problems_with_results_are_named(cli, clone):
    (clone / "metrics" / "no-sink" / "scalemcp-mini-seed42.json").write_text("[")
    done = cli("claims", "--format", "json", expect=4)
    assert json.loads(done.stdout)["unusable"][0]["file"].endswith(
        "no-sink/scalemcp-mini-seed42.json"
    )
    assert "Not used" in done.stderr
    assert "There is no none" in cli("claims", "--metrics-dir", "none", expect=2).stderr
