"""Benchmark: metrics, floors, ceiling, undefined values, trajectories, demonstrations."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys

import pytest

from benchmarks.scalemcp_mini.benchmark import BENCHMARK, ScaleMCPBenchmark
from benchmarks.scalemcp_mini.codec import shared_codec
from benchmarks.scalemcp_mini.experts import (
    DoNothing,
    FieldExpert,
    OracleExpert,
    RandomAgent,
    play,
)
from benchmarks.scalemcp_mini.knobs import NOISY_SKILL, Difficulty, SuiteConfig
from benchmarks.scalemcp_mini.suite import ScaleMCPSuite
from benchmarks.scalemcp_mini.words import VERBS
from methods.base import AgentSuite
from tests.benchmarks.scalemcp_mini.played import Scripted, context

_COUNTERS = {"zero_variance_groups": 3.0, "invalid_rewards": 0.0, "max_log_ratio_gap": 1e-6}


def test_gold_replay_solves_every_heldout_task_and_names_the_one_it_does_not() -> None:
    """B1, B2: the ceiling is 1.0 over all held-out tasks."""
    env = ScaleMCPSuite().make_env("heldout")
    failed = [i for i in range(1000) if play(env, OracleExpert(env), i)["joint_success"] != 1.0]
    assert failed == [], f"gold replay fails on held-out tasks {failed}"


def test_gold_replay_works_on_train_tasks_and_at_the_hardest_setting() -> None:
    hardest = Difficulty(consent=1.0, stale=1.0, stale_again=1.0, miss=1.0, miss_again=1.0)
    for suite in (ScaleMCPSuite(), ScaleMCPSuite(SuiteConfig(difficulty=hardest))):
        env = suite.make_env("train")
        failed = [i for i in range(100) if play(env, OracleExpert(env), i)["joint_success"] != 1.0]
        assert failed == [], f"gold replay fails on train tasks {failed}"


def test_doing_nothing_and_random_actions_are_a_floor_of_zero() -> None:
    """B2: doing nothing cannot pass."""
    env, codec = ScaleMCPSuite().make_env("heldout"), shared_codec()
    for index in range(300):
        nothing = play(env, DoNothing(), index)
        assert (nothing["joint_success"], nothing["reward"]) == (0.0, 0.0)
        assert play(env, RandomAgent(codec, random.Random(index)), index)["joint_success"] == 0.0


def test_the_clean_expert_nearly_always_succeeds_and_the_noisy_one_leaves_room() -> None:
    env = ScaleMCPSuite().make_env("heldout")
    clean = [play(env, FieldExpert(), i)["joint_success"] for i in range(200)]
    noisy = [
        play(env, FieldExpert(NOISY_SKILL, random.Random(i)), i)["joint_success"]
        for i in range(400)
    ]
    assert sum(clean) / 200 > 0.98
    assert 0.1 < sum(noisy) / 400 < 0.5


def test_metrics_are_complete_in_bounds_and_right_for_an_expert() -> None:
    result = BENCHMARK.run(Scripted(lambda env, _: OracleExpert(env), _COUNTERS), context(60))
    assert result.metrics.keys() == BENCHMARK.metric_specs.keys()
    for name, spec in BENCHMARK.metric_specs.items():
        metric = result.metrics[name]
        assert spec.name == name
        if metric.value is None:
            assert metric.reason, name
            continue
        assert spec.lower is None or metric.value >= spec.lower, name
        assert spec.upper is None or metric.value <= spec.upper, name
    values = {name: metric.value for name, metric in result.metrics.items()}
    for name in ("joint_success", "plan_success", "answer_accuracy", "tool_correctness"):
        assert values[name] == 1.0
    assert values["expert_joint_success"] == 1.0
    assert values["do_nothing_joint_success"] == values["base_joint_success"] == 0.0
    assert values["random_joint_success"] == 0.0
    assert values["policy_updates"] == 7.0
    assert values["kv_cache_peak_bytes"] == max(result.samples["kv_cache_peak_bytes"])
    assert {label_metric[1] for label_metric in BENCHMARK.summary} <= values.keys()
    tiers = [values[f"joint_success_tier_{n}"] for n in range(1, 6)]
    assert tiers == [1.0] * 5


def test_a_share_without_an_occasion_is_undefined_and_never_one() -> None:
    """B2: an empty criterion is n/a."""
    result = BENCHMARK.run(Scripted(lambda *_: DoNothing(), {}), context(3))
    for name in ("tool_correctness", "recall_at_k", "max_log_ratio_gap"):
        assert result.metrics[name].value is None
        assert result.metrics[name].reason
        assert result.metrics[name].n == 0
    missing = [n for n in range(1, 6) if result.metrics[f"joint_success_tier_{n}"].n == 0]
    assert missing
    for n in missing:
        assert result.metrics[f"joint_success_tier_{n}"].value is None
        assert f"tier_{n}" in str(result.metrics[f"joint_success_tier_{n}"].reason)
    assert all(math.isnan(v) for v in result.samples["tool_correctness"])


def test_standard_error_is_sample_std_over_root_n() -> None:
    result = BENCHMARK.run(
        Scripted(lambda _, i: FieldExpert(NOISY_SKILL, random.Random(i)), {}), context(50)
    )
    for name in ("average_cost", "joint_success", "average_tokens"):
        sample = result.samples[name]
        mean = sum(sample) / 50
        expected = math.sqrt(sum((v - mean) ** 2 for v in sample) / 49 / 50)
        assert result.metrics[name].value == pytest.approx(mean)
        assert result.metrics[name].stderr == pytest.approx(expected)
    assert result.metrics["tool_correctness"].n <= 50
    assert 0.0 < (result.metrics["recall_at_k"].value or 0.0) < 1.0


def test_trajectories_can_be_read_turn_by_turn_as_json() -> None:
    result = BENCHMARK.run(Scripted(lambda *_: FieldExpert(), _COUNTERS), context(30))
    assert len(result.trajectories) == 5
    assert {t["tier"] for t in result.trajectories} == {f"tier_{n}" for n in range(1, 6)}
    for episode in json.loads(json.dumps(result.trajectories, allow_nan=False)):
        assert sum(turn["reward"] for turn in episode["turns"]) == episode["reward"]
        assert [turn["role"] for turn in episode["turns"][:2]] == ["observation", "action"]
        assert episode["turns"][0]["text"].startswith("need #0 ")
        spans = [tuple(turn["tokens"]) for turn in episode["turns"]]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))


def test_too_many_episodes_say_how_many_there_are() -> None:
    with pytest.raises(ValueError, match="use --episodes 1000"):
        BENCHMARK.run(Scripted(lambda *_: DoNothing(), {}), context(1001))


def test_fingerprint_is_stable_and_every_knob_changes_it() -> None:
    same = ScaleMCPBenchmark(SuiteConfig())
    assert same.data_fingerprint() == BENCHMARK.data_fingerprint()
    others = [
        SuiteConfig(difficulty=Difficulty(consent=0.51)),
        SuiteConfig(difficulty=Difficulty(tier_weights=(1.0, 1.0, 1.0, 1.0, 1.0))),
        SuiteConfig(heldout_catalogs=(98,)),
        SuiteConfig(root=1),
        SuiteConfig(value_salt="x"),
    ]
    prints = {ScaleMCPBenchmark(config).data_fingerprint() for config in others}
    assert len(prints | {BENCHMARK.data_fingerprint()}) == len(others) + 1


def test_importing_and_fingerprinting_needs_no_torch_and_hashes_alike_in_another_process() -> None:
    code = (
        "import sys; from benchmarks.scalemcp_mini.benchmark import BENCHMARK as b; "
        "print(b.data_fingerprint(), 'torch' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert out == [BENCHMARK.data_fingerprint(), "False"]


def test_the_suite_is_an_agent_suite_and_gives_no_gold() -> None:
    suite = ScaleMCPSuite()
    assert isinstance(suite, AgentSuite)
    assert (suite.num_tasks("train"), suite.num_tasks("heldout")) == (2**20, 1000)
    protocol = {"name", "fingerprint", "codec", "context", "num_tasks", "make_env", "demonstration"}
    assert {name for name in dir(suite) if not name.startswith("_")} == protocol


@pytest.mark.parametrize("noisy", [False, True])
def test_demonstrations_are_repeatable_grammatical_and_cover_every_verb(noisy: bool) -> None:
    suite, codec = ScaleMCPSuite(), shared_codec()
    again = ScaleMCPSuite()
    verbs: set[str] = set()
    for index in range(60):
        demo = suite.demonstration(index, noisy=noisy, seed=1)
        assert demo == again.demonstration(index, noisy=noisy, seed=1)
        assert demo.train_mask == demo.action_mask
        assert len(demo.tokens) == len(demo.action_mask) == len(demo.grammar_state)
        written: list[int] = []
        for token, mine, state in zip(
            demo.tokens, demo.action_mask, demo.grammar_state, strict=True
        ):
            assert (state >= 0) == mine
            if mine:
                assert codec.grammar.allowed[state, token]
                written.append(token)
                if codec.grammar.next_state[state, token] == codec.grammar.final:
                    verbs.add(VERBS[codec.decode_action(written)["verb"]])
                    written = []
        assert not written
    assert verbs == set(VERBS)


def test_the_noise_of_a_demonstration_depends_on_its_seed() -> None:
    suite = ScaleMCPSuite()
    one, two = (
        [suite.demonstration(i, noisy=True, seed=seed) for i in range(20)] for seed in (1, 2)
    )
    assert one != two
    clean = [suite.demonstration(i, noisy=False, seed=1) for i in range(20)]
    assert clean == [suite.demonstration(i, noisy=False, seed=2) for i in range(20)]


def test_trajectories_are_several_windows_long() -> None:
    suite = ScaleMCPSuite()
    lengths = [len(suite.demonstration(i, noisy=False, seed=0).tokens) for i in range(300)]
    windows = [length / suite.context.window for length in lengths]
    assert 4 < sum(windows) / 300 < 8
    assert sum(w > 2 for w in windows) / 300 > 0.8
