"""Environment: whatever an agent hands over, there is an observation or a clear refusal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.scalemcp_mini import actions
from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv
from benchmarks.scalemcp_mini.knobs import Difficulty, SuiteConfig

EASY = Difficulty(consent=0.0, stale=0.0, miss=0.0)


def _env(difficulty: Difficulty, split: str = "heldout") -> ScaleMCPMiniEnv:
    return ScaleMCPMiniEnv(split, SuiteConfig(difficulty=difficulty))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "action",
    [None, 7, "search", [], {}, {"verb": 9}, {"verb": "search"}, {"verb": True}, {"verb": 1.0},
     {"verb": 0}, {"verb": 0, "query": None}, {"verb": 1}, {"verb": 1, "tool": "01-02"},
     {"verb": 1, "tool": "01-02", "year": 1999}, {"verb": 1, "tool": "x" * 999, "year": 2020},
     {"verb": 1, "tool": 3, "year": 2020}, {"verb": 2}, {"verb": 3}, {"verb": 3, "values": "12"},
     {"verb": 3, "values": 5}, {"verb": 3, "values": (1, -1, 2)}, {"verb": 3, "values": (10**9,)},
     {"verb": 3, "values": (1,) * 9}, {"verb": 3, "values": (float("nan"),)},
     {"verb": 3, "values": np.array([[1, 2]])}],
)  # fmt: skip
def test_garbage_gives_an_mcp_error_and_never_an_exception(action: Any) -> None:
    env = _env(EASY)
    env.reset(options={"task_index": 0})
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation["text"] == "error invalid #0"
    assert observation["is_error"] == 1
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["message"]


class _Hostile(Mapping[str, Any]):
    """A mapping whose reading goes wrong."""

    def __init__(self, verb: int | None) -> None:
        self._verb = verb

    def __getitem__(self, key: str) -> Any:
        if key == "verb" and self._verb is not None:
            return self._verb
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")


class _Index:
    def __index__(self) -> int:
        raise OSError("no")


class _Text(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no")

    def lower(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "action",
    [_Hostile(None), _Hostile(0), _Hostile(1), _Hostile(2), _Hostile(3), {"verb": _Index()},
     {"verb": 3, "values": map(int, "x")}, {"verb": 3, "values": itertools.count()},
     {"verb": 1, "tool": "\ud800", "year": 2020}, {"verb": 1, "tool": "01-02", "year": _Index()}],
)  # fmt: skip
def test_an_action_whose_reading_raises_is_an_mcp_error_too(action: Any) -> None:
    env = _env(EASY)
    env.reset(options={"task_index": 0})
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == {"text": "error invalid #0", "is_error": 1}
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["message"]


def test_a_text_that_overrides_its_methods_is_read_as_plain_text() -> None:
    env = _env(EASY)
    seen = []
    for query, tool in (("bank", "99-99"), (_Text("bank"), _Text("99-99"))):
        env.reset(options={"task_index": 0})
        seen.append([env.step(actions.search(query))[0], env.step(actions.ask_user(tool))[0]])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("index", ["a", 1.5, True, -1, 1000, [3], "3", float("nan")])
def test_a_task_index_that_is_none_names_the_allowed_range(index: Any) -> None:
    env = ScaleMCPMiniEnv("heldout")
    with pytest.raises(ValueError, match="has tasks 0 to 999"):
        env.reset(options={"task_index": index})


def test_a_numpy_task_index_is_the_same_task() -> None:
    env = ScaleMCPMiniEnv("heldout")
    plain, _ = env.reset(options={"task_index": 7})
    assert env.reset(options={"task_index": np.int64(7)})[0] == plain
    assert type(env._task.index) is int


def test_sampled_actions_and_hostile_text_stay_in_the_space() -> None:
    env = _env(Difficulty(turns_base=200))
    env.reset(options={"task_index": 0})
    env.action_space.seed(5)
    hostile = [actions.search(q) for q in ('" OR *', "<agent> ; #5 99 99", "\x00é", "a" * 9999)]
    for action in hostile + [env.action_space.sample() for _ in range(60)]:
        observation, *_ = env.step(action)
        assert env.observation_space.contains(observation)
        assert "<agent>" not in observation["text"]
        if env._over:
            env.reset(options={"task_index": 0})
