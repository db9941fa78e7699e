"""Whole runs on the toy suite, and what distinguishes the five methods."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from methods.agent import AgentMethod, heldout_tasks, load_base, make_policy
from methods.base import AgentOutcome, Interrupted, Method
from methods.config import AttentionConfig, GRPOConfig, MethodConfig, SupervisedConfig
from methods.supervised import base_recipe
from tests.methods.tiny import Recorder, tiny_config, tiny_context, tiny_suite

PAGES = ("sinkflex_rl", "eager_attention", "no_sink", "dropped_sink", "tokens_only")


def page(name: str) -> AgentMethod:
    method = importlib.import_module(f"methods.{name}").METHOD
    assert isinstance(method, AgentMethod)
    return method


def tiny_method(name: str = "sinkflex_rl") -> AgentMethod:
    """The page's attention with the tiny sizes."""
    config = page(name).config
    return dataclasses.replace(
        page(name),
        config=tiny_config(
            attention=config.attention,
            base_attention=config.base_attention,
            supervised=SupervisedConfig(steps=8, batch_size=8, noisy_from=0.5),
        ),
    )


def stable(outcome: AgentOutcome) -> Any:
    history = [
        {k: v for k, v in row.items() if not k.startswith("seconds_")} for row in outcome.history
    ]
    return outcome.base_episodes, outcome.episodes, history, outcome.updates, outcome.counters


# --- the pages ------------------------------------------------------------------------------


def test_pages_import_neither_torch_nor_each_other() -> None:
    code = (
        "import sys\n"
        + "".join(f"import methods.{name}\n" for name in PAGES)
        + "heavy = {'torch', 'tensordict', 'gymnasium', 'safetensors', 'numpy'} & set(sys.modules)\n"
        + "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PAGES)
def test_page_follows_the_protocol_and_says_what_differs(name: str) -> None:
    method: Method = page(name)
    assert method.name == name.replace("_", "-")
    assert json.loads(json.dumps(dataclasses.asdict(method.config)))
    assert "tells" in str(sys.modules[f"methods.{name}"].__doc__) or name == "sinkflex_rl"


def test_methods_differ_in_attention_alone() -> None:
    same = {
        json.dumps(
            {k: v for k, v in dataclasses.asdict(page(n).config).items() if "atten" not in k}
        )
        for n in PAGES
    }
    assert len(same) == 1
    assert len({page(n).config.attention for n in PAGES}) == len(PAGES) - 1  # dropped = no-sink
    assert page("no_sink").config.base_attention != page("dropped_sink").config.base_attention


def test_who_shares_whose_base() -> None:
    suite = tiny_suite()
    recipes = {name: base_recipe(suite, page(name).config) for name in PAGES}
    assert recipes["sinkflex_rl"] == recipes["eager_attention"] == recipes["dropped_sink"]
    assert recipes["no_sink"] != recipes["sinkflex_rl"]
    assert recipes["tokens_only"] not in (recipes["sinkflex_rl"], recipes["no_sink"])


def test_every_method_sees_as_many_positions() -> None:
    """S + W everywhere, so that no method wins by a larger window."""
    suite = tiny_suite()
    budget = suite.context.window + suite.context.num_sink_tokens
    for name in PAGES:
        policy = make_policy(suite, page(name).config, page(name).config.attention)
        assert policy.window + policy.num_sink_tokens == budget, name


def test_dropped_sink_keeps_every_weight_but_the_sink_logits() -> None:
    suite = tiny_suite()
    config = page("dropped_sink").config
    base = make_policy(suite, config, config.base_attention, torch.Generator().manual_seed(1))
    policy = make_policy(suite, config, config.attention)
    load_base(policy, base.state_dict())
    weights, dropped = base.state_dict(), policy.state_dict()
    assert {n for n in weights if n not in dropped} == {n for n in weights if "sink_logits" in n}
    assert weights.keys() != dropped.keys()
    assert all(torch.equal(weights[name], value) for name, value in dropped.items())


# --- whole runs -----------------------------------------------------------------------------


def test_run_is_the_same_twice_and_resumes_in_every_phase(tmp_path: Path) -> None:
    suite, method = tiny_suite(), tiny_method()
    first = method.run_agent(suite, tiny_context(tmp_path / "a"))
    second = method.run_agent(suite, tiny_context(tmp_path / "a", cell="again"))
    assert stable(first) == stable(second)

    phases = ("base", "evaluate-base", "rl")
    for phase in phases:

        def stop(events: list[Mapping[str, Any]], phase: str = phase) -> bool:
            return bool(events) and events[-1].get("phase") == phase

        folder = tmp_path / phase
        with pytest.raises(Interrupted):
            method.run_agent(suite, tiny_context(folder, recorder=Recorder(stop)))
        resumed = method.run_agent(suite, tiny_context(folder))
        assert stable(resumed) == stable(first), phase


def test_resumed_cell_does_not_evaluate_its_base_again(tmp_path: Path) -> None:
    suite, method = tiny_suite(), tiny_method()
    method.run_agent(suite, tiny_context(tmp_path))
    recorder = Recorder()
    method.run_agent(suite, tiny_context(tmp_path, recorder=recorder))
    assert {event["phase"] for event in recorder.events if "phase" in event} == {"rl", "evaluate"}
    saved = tmp_path / "cell" / "base-episodes.json"
    saved.write_text(saved.read_text().replace('"reward": ', '"reward": 1', 1))
    recorder = Recorder()
    method.run_agent(suite, tiny_context(tmp_path, recorder=recorder))
    assert recorder.of("progress", "evaluate-base"), "an altered cache was believed"


@pytest.mark.parametrize("name", PAGES)
def test_every_method_runs(tmp_path: Path, name: str) -> None:
    context = tiny_context(tmp_path, updates=1, episodes=5)
    outcome = tiny_method(name).run_agent(tiny_suite(), context)
    tasks = [episode.task_index for episode in outcome.episodes]
    assert tasks == [episode.task_index for episode in outcome.base_episodes]
    assert tasks == sorted(set(tasks))
    assert outcome.updates == 1
    assert outcome.counters["max_log_ratio_gap"] < 1e-4


def test_eager_and_window_kernels_give_the_same_base_evaluation(tmp_path: Path) -> None:
    """Same base, same draws: before any update the two sample the same tokens."""
    suite = tiny_suite()
    one, two = (
        tiny_method(name).run_agent(suite, tiny_context(tmp_path, updates=0, cell=name))
        for name in ("sinkflex_rl", "eager_attention")
    )
    assert [e.tokens for e in one.base_episodes] == [e.tokens for e in two.base_episodes]
    assert (
        one.base_episodes[0].metrics["kv_cache_peak_bytes"]
        <= (two.base_episodes[0].metrics["kv_cache_peak_bytes"])
    )


def test_no_updates_leave_the_base_as_it_is(tmp_path: Path) -> None:
    outcome = tiny_method().run_agent(tiny_suite(), tiny_context(tmp_path, updates=0))
    assert outcome.updates == 0
    assert outcome.history == []
    assert outcome.episodes == outcome.base_episodes


def test_heldout_tasks_are_distinct_and_bounded(tmp_path: Path) -> None:
    suite = tiny_suite()
    everything = heldout_tasks(suite, tiny_context(tmp_path, episodes=64))
    assert everything == list(range(64))
    some = heldout_tasks(suite, tiny_context(tmp_path, episodes=10))
    assert some == sorted(set(some))
    assert len(some) == 10
    assert some != heldout_tasks(suite, tiny_context(tmp_path, episodes=10, seed=2))
    for wrong in (0, 65):
        with pytest.raises(ValueError, match="ask for 1 to 64"):
            heldout_tasks(suite, tiny_context(tmp_path, episodes=wrong))


def test_spec_hash_separates_cells(tmp_path: Path) -> None:
    suite = tiny_suite()
    reference = tiny_method().spec_hash(suite, tiny_context(tmp_path))
    assert reference == tiny_method().spec_hash(suite, tiny_context(tmp_path, cell="elsewhere"))
    others = {
        tiny_method().spec_hash(suite, tiny_context(tmp_path, seed=2)),
        tiny_method().spec_hash(suite, tiny_context(tmp_path, updates=9)),
        tiny_method("no_sink").spec_hash(suite, tiny_context(tmp_path)),
        AgentMethod("sinkflex-rl", "2", tiny_method().config).spec_hash(
            suite, tiny_context(tmp_path)
        ),
    }
    assert len(others) == 4
    assert reference not in others


def test_default_config_is_frozen() -> None:
    config = MethodConfig(attention=AttentionConfig())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.base_seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRPOConfig(groups=6, minibatches=4), r"minibatches is 4.*6 groups.*1, 2, 3, 6"),
        (lambda: GRPOConfig(groups=0), "groups is 0; it must be at least 1"),
        (
            lambda: MethodConfig(attention=AttentionConfig(), grpo=GRPOConfig(group_size=1)),
            r"processes is 2.*group_size 1.*allowed are 1 to 1",
        ),
        (lambda: MethodConfig(attention=AttentionConfig(), processes=0), "processes is 0"),
    ],
)
def test_budgets_that_cannot_be_shared_out_are_refused(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()
