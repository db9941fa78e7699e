"""A cell's canonical JSON and id: pinned, complete, and blind to what does not matter."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.spec import BenchmarkRef, Budget, CellSpec, MethodRef, build_spec, json_ready

GOLDEN = Path(__file__).parents[1] / "golden" / "cell_spec.json"

SPEC = CellSpec(
    method=MethodRef(
        "sinkflex-rl", "1", {"lr": 3e-4, "window": 128, "name": "é", "sinks": [True, None]}
    ),
    benchmark=BenchmarkRef("scalemcp-mini", "2", "0f" * 32),
    seed=42,
    budget=Budget(episodes=120, updates=60),
)


def test_the_canonical_json_and_the_id_are_pinned() -> None:
    """A change here makes every committed result incomparable: it must be meant."""
    golden = json.loads(GOLDEN.read_text())
    assert SPEC.canonical_json() == golden["canonical_json"]
    assert SPEC.cell_id == golden["cell_id"]
    assert str(SPEC.cell_name) == golden["cell_name"]


def test_a_spec_round_trips_through_json() -> None:
    again = CellSpec.from_json(json.loads(json.dumps(SPEC.to_json())))
    assert again == SPEC
    assert again.cell_id == SPEC.cell_id


def test_the_order_of_config_keys_does_not_matter() -> None:
    config = dict(reversed(SPEC.method.config.items()))
    method = dataclasses.replace(SPEC.method, config=config)
    assert dataclasses.replace(SPEC, method=method).cell_id == SPEC.cell_id


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 43},
        {"budget": Budget(121, 60)},
        {"budget": Budget(120, 0)},
        {"method": MethodRef("sinkflex-rl", "2", SPEC.method.config)},
        {"method": MethodRef("no-sink", "1", SPEC.method.config)},
        {"method": MethodRef("sinkflex-rl", "1", {**SPEC.method.config, "lr": 1e-4})},
        {"benchmark": BenchmarkRef("scalemcp-mini", "3", "0f" * 32)},
        {"benchmark": BenchmarkRef("scalemcp-mini", "2", "0e" * 32)},
    ],
)
def test_everything_that_makes_a_cell_changes_its_id(change) -> None:
    assert dataclasses.replace(SPEC, **change).cell_id != SPEC.cell_id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": True}, "seed is True"),
        ({"budget": Budget(0, 1)}, "episodes is 0"),
        ({"budget": Budget(1, -1)}, "updates is -1"),
    ],
)
def test_numbers_out_of_range_are_refused(change, said: str) -> None:
    with pytest.raises(UserError, match=said):
        dataclasses.replace(SPEC, **change)


@pytest.mark.parametrize("drop", ["method", "seed", "budget"])
def test_an_incomplete_document_is_no_spec(drop: str) -> None:
    document = SPEC.to_json()
    del document[drop]
    with pytest.raises(UserError, match=drop):
        CellSpec.from_json(document)


def test_json_ready_keeps_what_json_can_hold_and_names_what_it_cannot() -> None:
    @dataclasses.dataclass(frozen=True)
    class Inner:
        sizes: tuple[int, ...] = (1, 2)

    assert json_ready({"a": Inner(), "b": None}) == {"a": {"sizes": [1, 2]}, "b": None}
    with pytest.raises(ValueError, match=r"config\.a\[1\] is nan"):
        json_ready({"a": [0.0, math.nan]}, "config")
    with pytest.raises(TypeError, match=r"config\.a is a set"):
        json_ready({"a": {1}}, "config")
    with pytest.raises(TypeError, match="the key 1"):
        json_ready({1: 2}, "config")


class _Bench:
    name, version = "b", "1"
    default_episodes, default_updates = 120, 60

    def data_fingerprint(self) -> str:
        return "00" * 32


@dataclasses.dataclass
class _Meth:
    config: object
    name: str = "m"
    version: str = "1"


def test_the_benchmark_fills_in_a_budget_that_is_not_given() -> None:
    assert build_spec(_Meth({}), _Bench(), seed=0).budget == Budget(120, 60)
    assert build_spec(_Meth({}), _Bench(), seed=0, episodes=4, updates=0).budget == Budget(4, 0)


def test_parts_that_cannot_be_pinned_down_are_named() -> None:
    with pytest.raises(UserError, match=r"'m' cannot be pinned down.*config of m\.x is a set"):
        build_spec(_Meth({"x": {1}}), _Bench(), seed=0)
    with pytest.raises(UserError, match="config of the method 'm' is a int"):
        build_spec(_Meth(3), _Bench(), seed=0)

    class Broken(_Bench):
        def data_fingerprint(self) -> str:
            raise FileNotFoundError("tasks.json")

    with pytest.raises(UserError, match=r"'b' cannot say.*FileNotFoundError: tasks\.json"):
        build_spec(_Meth({}), Broken(), seed=0)


def test_more_episodes_than_the_benchmark_has_are_refused_with_the_range() -> None:
    class Small(_Bench):
        max_episodes = 12

    assert build_spec(_Meth({}), Small(), seed=0, episodes=12).budget.episodes == 12
    with pytest.raises(UserError, match=r"episodes is 13; .*'b' has 12 held-out.*1 to 12"):
        build_spec(_Meth({}), Small(), seed=0, episodes=13)
    Small.max_episodes = None
    assert build_spec(_Meth({}), Small(), seed=0, episodes=13).budget.episodes == 13
