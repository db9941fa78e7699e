"""Environment: Gymnasium conformance, dynamics, robustness, determinism."""

from __future__ import annotations

import random
import threading
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from benchmarks.scalemcp_mini import actions
from benchmarks.scalemcp_mini.codec import shared_codec
from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv
from benchmarks.scalemcp_mini.experts import FieldExpert, RandomAgent
from benchmarks.scalemcp_mini.knobs import Difficulty, SuiteConfig, stable_hash
from benchmarks.scalemcp_mini.suite import ScaleMCPSuite
from benchmarks.scalemcp_mini.tasks import TaskSet, hidden, pair_split

EASY = Difficulty(consent=0.0, stale=0.0, miss=0.0)


def _env(difficulty: Difficulty, split: str = "heldout") -> ScaleMCPMiniEnv:
    return ScaleMCPMiniEnv(split, SuiteConfig(difficulty=difficulty))  # type: ignore[arg-type]


def _items(observation: dict[str, Any]) -> list[str]:
    words = observation["text"].split()
    return [" ".join(words[i : i + 3]) for i in range(2, len(words) - 2, 4)]


def _handle(page: dict[str, Any], item: str) -> str | None:
    words = page["text"].split()
    for i in range(2, len(words) - 4):
        if " ".join(words[i : i + 3]) == item:
            return "-".join(words[i + 3 : i + 5])
    return None


def _find(env: ScaleMCPMiniEnv, item: str) -> str:
    for _ in range(4):
        page, *_ = env.step(actions.search(item))
        handle = _handle(page, item)
        if handle is not None:
            return handle
    raise AssertionError(f"{item} is not found in four searches")


def test_passes_gymnasiums_check_env() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(
            "benchmarks.scalemcp_mini.env:ScaleMCPMini-v0", split="heldout", render_mode="ansi"
        )
        check_env(env.unwrapped)
    assert env.spec is not None
    assert env.spec.version == 0


def test_reset_by_seed_and_by_index() -> None:
    env = ScaleMCPMiniEnv()
    one, _ = env.reset(seed=3)
    two, _ = env.reset(seed=3)
    other, _ = env.reset(options={"task_index": 1})
    again, _ = env.reset(seed=9, options={"task_index": 1})
    assert one == two
    assert other == again
    for index in (-1, 2**20):
        with pytest.raises(ValueError, match="has tasks 0 to 1048575"):
            env.reset(options={"task_index": index})


def test_an_easy_task_needs_one_search_and_one_call_a_value() -> None:
    env = _env(EASY)
    for index in range(20):
        observation, info = env.reset(options={"task_index": index})
        assert info == {}
        year, values = int(observation["text"].split()[-1]), []
        for item in _items(observation):
            result, reward, *_ = env.step(actions.call(_find(env, item), year))
            words = result["text"].split()
            assert words[:5] == ["ok", *item.split(), str(year)]
            assert reward == 0.0
            values.append(int(words[5]) * 100 + int(words[6]))
        _, reward, terminated, truncated, info = env.step(actions.answer(values))
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert info["metrics"]["cost"] == 2 * len(values)
        assert info["tier"] == f"tier_{len(values)}"


def test_consent_comes_only_from_the_users_own_action() -> None:
    env = _env(Difficulty(consent=1.0, stale=0.0, miss=0.0))
    observation, _ = env.reset(options={"task_index": 0})
    item, year = _items(observation)[0], int(observation["text"].split()[-1])
    handle = _find(env, item)
    for _ in range(2):
        refused, _, _, _, info = env.step(actions.call(handle, year))
        assert refused["text"].startswith(f"error consent {handle.replace('-', ' ')} #0")
        assert refused["is_error"] == 1
        assert "ask the user" in info["message"]
    assert env._state.user_actions == []
    granted, *_ = env.step(actions.ask_user(handle))
    assert granted["text"].startswith("granted")
    assert [what for what, _ in env._state.user_actions] == ["grant"]
    assert env.step(actions.call(handle, year))[0]["text"].startswith("ok")


def test_the_user_refuses_what_the_request_does_not_name_and_never_ends_the_episode() -> None:
    """B4: a user that stops before the write would be the simulator's fault; this one cannot."""
    env = _env(Difficulty(consent=1.0, stale=0.0, miss=0.0))
    observation, _ = env.reset(options={"task_index": 0})
    wanted = set(_items(observation))
    name = next(t.name for p, t in env._catalog.tools.items() if " ".join(p) not in wanted)
    refused, _, terminated, truncated, _ = env.step(actions.ask_user(name))
    assert refused["text"].startswith("error refused")
    assert not terminated
    assert not truncated


def test_a_changed_handle_goes_stale_and_a_new_search_finds_the_new_one() -> None:
    for replaced in (0.0, 1.0):
        env = _env(Difficulty(consent=0.0, stale=1.0, stale_again=0.0, miss=0.0, replaced=replaced))
        observation, _ = env.reset(options={"task_index": 0})
        item, year = _items(observation)[0], int(observation["text"].split()[-1])
        old = _find(env, item)
        stale, _, _, _, info = env.step(actions.call(old, year))
        assert stale["text"].startswith(f"error stale {old.replace('-', ' ')} #0")
        assert "search again" in info["message"]
        new = _find(env, item)
        assert new != old
        assert env.step(actions.call(old, year))[0]["text"].startswith("error stale")
        assert env.step(actions.ask_user(old))[0]["text"].startswith("error stale")
        assert env.step(actions.call(new, year))[0]["text"].startswith("ok")


def test_a_missed_search_shows_near_misses_and_the_next_one_finds() -> None:
    env = _env(Difficulty(consent=0.0, stale=0.0, miss=1.0, miss_again=0.0))
    observation, _ = env.reset(options={"task_index": 0})
    item = _items(observation)[0]
    first, *_ = env.step(actions.search(item))
    assert _handle(first, item) is None
    assert len(first["text"].split()) == 4 + 4 * 6 + 1
    second, *_ = env.step(actions.search(item))
    assert _handle(second, item) is not None


def test_page_order_says_nothing_about_relevance() -> None:
    env = _env(EASY)
    env.reset(options={"task_index": 0})
    places = []
    for pair in env._catalog.tools:
        env._turn = 0
        words = env.step(actions.search(" ".join(pair)))[0]["text"].split()
        documents = [words[i : i + 6] for i in range(2, 26, 6)]
        handles = [d[3] + d[4] for d in documents]
        assert handles == sorted(handles)
        places.append([" ".join(d[:3]) for d in documents].index(" ".join(pair)))
    counts = np.bincount(places, minlength=4)
    assert len(places) == 320
    assert ((counts - 80.0) ** 2 / 80.0).sum() < 16.3, counts  # chi-squared, 3 df, p = 0.001


def test_the_ledger_keeps_the_last_value_of_a_tool_and_five_in_all() -> None:
    env = _env(Difficulty(consent=0.0, stale=0.0, miss=0.0, turns_base=50))
    env.reset(options={"task_index": 0})
    tools = list(env._catalog.tools.values())[:7]
    for tool in tools:
        text = env.step(actions.call(tool.name, 2020))[0]["text"]
    expected = [env._catalog.value(*tool.pair, 2020) for tool in tools[2:]]
    assert text.split("#5 ")[1].split() == [
        code for v in expected for code in (f"{v // 100:02d}", f"{v % 100:02d}")
    ]
    env.reset(options={"task_index": 0})
    for year in (2019, 2020):
        text = env.step(actions.call(tools[0].name, year))[0]["text"]
    assert text.split()[-3] == "#1"


def test_the_turn_limit_truncates_with_metrics_and_no_reward_for_silence() -> None:
    env = _env(EASY)
    observation, _ = env.reset(options={"task_index": 0})
    limit = env._difficulty.turn_limit(len(_items(observation)))
    for _ in range(limit - 1):
        assert env.step(actions.search("bank"))[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step(actions.search("bank"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["metrics"]["answered"] == 0.0
    assert info["metrics"]["env_turns"] == limit
    after = env.step(actions.search("bank"))
    assert after[0]["text"] == "error over"
    assert after[1] == 0.0


def _transcript(env: ScaleMCPMiniEnv, index: int, noise: int) -> list[Any]:
    """An expert's episode; with ``noise`` its own random actions come in between."""
    agent = RandomAgent(shared_codec(), random.Random(stable_hash(noise, index)))
    expert = FieldExpert()
    observation, info = env.reset(options={"task_index": index})
    out: list[Any] = [observation, info]
    over = False
    while not over:
        extra = agent.act(observation)
        if noise and extra["verb"] != actions.ANSWER:
            out.append(env.step(extra))
            over = out[-1][2] or out[-1][3]
        if not over:
            out.append(env.step(expert.act(observation)))
            observation = out[-1][0]
            over = out[-1][2] or out[-1][3]
    return out


def test_the_same_task_in_two_instances_is_the_same_episode_whatever_was_played_before() -> None:
    """B3 kind: nothing hidden is drawn lazily and a reset undoes every catalog change."""
    suite = ScaleMCPSuite()
    one, two = suite.make_env("train"), suite.make_env("train")
    for index in range(40):
        _transcript(two, 1000 + index, noise=2)
        assert _transcript(one, index, noise=0) == _transcript(two, index, noise=0)


def test_one_and_four_threads_play_identical_episodes() -> None:
    """B3: environments share no mutable state and no global generator."""
    suite = ScaleMCPSuite()
    alone = suite.make_env("train")
    expected = {index: _transcript(alone, index, noise=1) for index in range(24)}
    got: dict[int, list[Any]] = {}

    def work(start: int) -> None:
        env = suite.make_env("train")
        for index in range(start, 24, 4):
            got[index] = _transcript(env, index, noise=1)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


def test_reset_restores_the_catalog_through_sync() -> None:
    env = _env(Difficulty(consent=0.0, stale=1.0, stale_again=1.0))
    env.reset(options={"task_index": 0})
    store, pristine = env._the_store, env._the_store.state
    for tool in list(env._catalog.tools.values())[:5]:
        env.step(actions.call(tool.name, 2020))
    assert store.state != pristine
    env.reset(options={"task_index": 1})
    assert store.state == pristine
    assert len(store) == len(env._catalog.tools)


def test_splits_share_no_pair_no_catalog_and_no_task() -> None:
    tasks = TaskSet(SuiteConfig())
    asked: dict[str, set[Any]] = {"train": set(), "heldout": set()}
    catalogs: dict[str, set[int]] = {"train": set(), "heldout": set()}
    for split in ("train", "heldout"):
        for index in range(1000):
            task = tasks.task(split, index)  # type: ignore[arg-type]
            asked[split] |= set(task.pairs)
            catalogs[split].add(task.catalog_seed)
            assert len(set(task.pairs)) == len(task.pairs)
            assert all(pair_split(pair, 0.3) == split for pair in task.pairs)
    assert not asked["train"] & asked["heldout"]
    assert not catalogs["train"] & catalogs["heldout"]
    assert tasks.num_tasks("heldout") == 1000
    assert tasks.num_tasks("train") == 2**20
    with pytest.raises(ValueError, match="share the seeds"):
        SuiteConfig(train_catalogs=(1, 2), heldout_catalogs=(2,))


def test_kinds_tiers_and_hidden_state_come_at_their_stated_rates() -> None:
    difficulty = Difficulty()
    tasks = TaskSet(SuiteConfig())
    some = [tasks.task("train", index) for index in range(2000)]
    counts = np.bincount([len(task.pairs) for task in some], minlength=6)[1:] / 2000
    assert np.abs(counts - np.array(difficulty.tier_weights)).max() < 0.04
    assert len({task.kind for task in some}) == 6
    for task in some:
        if task.kind == "two companies":
            assert task.pairs[0][1] == task.pairs[1][1]
        if task.kind == "two metrics":
            assert task.pairs[0][0] == task.pairs[1][0]
    states = [hidden(task.seed, pair, difficulty) for task in some for pair in task.pairs]
    assert abs(np.mean([s.needs_consent for s in states]) - 0.5) < 0.03
    assert abs(np.mean([s.changes > 0 for s in states]) - 0.4) < 0.03
    assert abs(np.mean([s.misses > 0 for s in states]) - 0.25) < 0.03


def test_five_thousand_tools_are_playable() -> None:
    config = SuiteConfig(difficulty=Difficulty(companies=625), train_catalogs=(11,))
    env = ScaleMCPMiniEnv("train", config)
    expert = FieldExpert()
    observation, _ = env.reset(options={"task_index": 3})
    over = False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(expert.act(observation))
        over = terminated or truncated
    assert reward == 1.0
    assert len(env._the_store) == 5000
