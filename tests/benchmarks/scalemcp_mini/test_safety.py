"""The gold answer and plan reach a policy only through the calls that earn them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.scalemcp_mini import actions
from benchmarks.scalemcp_mini.codec import shared_codec
from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv
from benchmarks.scalemcp_mini.experts import FieldExpert, OracleExpert
from benchmarks.scalemcp_mini.knobs import SuiteConfig
from benchmarks.scalemcp_mini.words import code_words

CODEC = shared_codec()


def _leaves(value: Any) -> Iterator[Any]:
    """Everything inside ``info``, keys and attributes included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _leaves(inner)
    elif hasattr(value, "__dict__"):
        yield from _leaves(vars(value))
    else:
        yield value


def _contains(tokens: list[int], codes: str) -> bool:
    words = CODEC.decode_text(tokens).split()
    first, second = codes.split()
    return any((a, b) == (first, second) for a, b in itertools.pairwise(words))


def test_a_value_is_seen_only_after_a_successful_call_of_its_tool() -> None:
    env = ScaleMCPMiniEnv("heldout")
    checked = 0
    for index in range(60):
        expert = FieldExpert()
        observation, info = env.reset(options={"task_index": index})
        task, catalog = env._task, env._catalog
        hidden = {pair: code_words(catalog.value(*pair, task.year)) for pair in task.pairs}
        handles = {tool.name.replace("-", " ") for tool in catalog.tools.values()}
        over = False
        while not over:
            obtained = env._state.ledger
            tokens = CODEC.encode_observation(observation)
            for pair, codes in hidden.items():
                shown_otherwise = codes in handles or codes in [
                    code_words(value) for value in obtained.values()
                ]
                if (
                    pair not in obtained
                    and not shown_otherwise
                    and "page" not in observation["text"]
                ):
                    assert not _contains(tokens, codes), (index, pair)
                    checked += 1
            assert all(isinstance(leaf, str) for leaf in _leaves(info)), info
            observation, _, terminated, truncated, info = env.step(expert.act(observation))
            over = terminated or truncated
    assert checked > 500


def _twins(salt: str) -> ScaleMCPMiniEnv:
    return ScaleMCPMiniEnv("heldout", SuiteConfig(value_salt=salt))


def test_twin_worlds_with_other_gold_values_look_the_same_until_a_call_succeeds() -> None:
    one, two = _twins(""), _twins("other values")
    differing = 0
    for index in range(40):
        expert = FieldExpert()
        (seen, info), (twin, twin_info) = (
            env.reset(options={"task_index": index}) for env in (one, two)
        )
        while True:
            assert CODEC.encode_observation(seen) == CODEC.encode_observation(twin)
            assert info == twin_info
            action = expert.act(seen)
            seen, _, _, _, info = one.step(action)
            twin, _, _, _, twin_info = two.step(action)
            if seen["text"].startswith("ok"):
                break
        differing += seen != twin
    assert differing == 40


def test_info_holds_no_company_metric_value_or_plan() -> None:
    env = ScaleMCPMiniEnv("heldout")
    for index in range(60):
        expert = FieldExpert()
        observation, info = env.reset(options={"task_index": index})
        words = {word for pair in env._task.pairs for word in (*pair, *pair[0].split())}
        gold = {env._catalog.value(*pair, env._task.year) for pair in env._task.pairs}
        over = False
        while not over:
            assert info.keys() <= {"message"}
            assert not words & {w for leaf in _leaves(info) for w in str(leaf).split()}
            observation, _, terminated, truncated, info = env.step(expert.act(observation))
            over = terminated or truncated
        assert info.keys() == {"metrics", "tier"}
        assert all(type(value) is float for value in info["metrics"].values())
        assert not {float(v) for v in gold if v > 60} & set(info["metrics"].values())


def test_a_right_answer_without_calls_is_no_plan_and_no_joint_success() -> None:
    env = ScaleMCPMiniEnv("heldout")
    for index in range(20):
        env.reset(options={"task_index": index})
        gold = [env._catalog.value(*pair, env._task.year) for pair in env._task.pairs]
        _, reward, _, _, info = env.step(actions.answer(gold))
        metrics = info["metrics"]
        assert metrics["answer_accuracy"] == 1.0
        assert (metrics["plan_success"], metrics["joint_success"]) == (0.0, 0.0)
        assert reward == 0.3


def test_a_kept_plan_with_a_wrong_answer_is_no_joint_success() -> None:
    env = ScaleMCPMiniEnv("heldout")
    index = next(i for i in range(99) if len(env._tasks.task("heldout", i).pairs) == 3)
    oracle = OracleExpert(env)
    observation, _ = env.reset(options={"task_index": index})
    action = oracle.act(observation)
    while action["verb"] != actions.ANSWER:
        observation, *_ = env.step(action)
        action = oracle.act(observation)
    values = list(action["values"][:3])
    swapped = actions.answer([values[1], values[0], values[2]])
    _, reward, _, _, info = env.step(swapped)
    assert info["metrics"]["plan_success"] == 1.0
    assert info["metrics"]["joint_success"] == 0.0
    assert abs(reward - 0.1) < 1e-12


def test_padding_an_answer_with_more_values_lowers_accuracy_and_breaks_the_plan() -> None:
    env = ScaleMCPMiniEnv("heldout")
    index = next(i for i in range(99) if len(env._tasks.task("heldout", i).pairs) == 1)
    env.reset(options={"task_index": index})
    oracle = OracleExpert(env)
    action = oracle.act({})
    while action["verb"] != actions.ANSWER:
        env.step(action)
        action = oracle.act({})
    *_, info = env.step(actions.answer([action["values"][0], 1, 2, 3]))
    assert info["metrics"]["answer_accuracy"] == 0.25
    assert info["metrics"]["plan_success"] == 0.0
