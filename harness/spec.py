"""What a cell is: method x benchmark x seed x budget, its canonical JSON, and its id.

The id is the SHA-256 of the canonical JSON, versions and data fingerprint included: two cells with
the same id are the same experiment and must give the same bytes. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from methods.base import Benchmark, Method

MAX_SEED = 2**63 - 1


def json_ready(value: Any, where: str = "value") -> Any:
    """Plain JSON types of a config: dataclasses to dicts, tuples to lists.

    Args:
        value: A dataclass, mapping, list, tuple, string, number, bool or None, nested freely.
        where: Named in errors.

    Raises:
        TypeError: If something in it has no exact JSON form (a set, an object, a key that is no
            string).
        ValueError: If a number in it is not finite.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value!r}; only finite numbers are allowed.")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys must be strings.")
        return {key: json_ready(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where} is a {type(value).__name__} ({value!r}), which JSON cannot hold.")


@dataclass(frozen=True)
class MethodRef:
    """A method as a cell pins it: name, version and all that distinguishes it."""

    name: str
    version: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class BenchmarkRef:
    """A benchmark as a cell pins it: name, version and SHA-256 of its data."""

    name: str
    version: str
    data_fingerprint: str


@dataclass(frozen=True)
class Budget:
    """How much a cell may do: held-out episodes to evaluate, policy updates to make."""

    episodes: int
    updates: int


@dataclass(frozen=True)
class CellSpec:
    """One cell of the matrix.

    Args:
        method: Which method.
        benchmark: Which benchmark.
        seed: Drives RL and evaluation; 0 to 2**63 - 1.
        budget: Episodes (>= 1) and updates (>= 0).

    Raises:
        UserError: If seed or budget is out of range.
    """

    method: MethodRef
    benchmark: BenchmarkRef
    seed: int
    budget: Budget

    def __post_init__(self) -> None:
        for name, value, low in (
            ("seed", self.seed, 0),
            ("episodes", self.budget.episodes, 1),
            ("updates", self.budget.updates, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int):
                raise UserError(f"{name} is {value!r}; it must be an integer.")
            if not low <= value <= MAX_SEED:
                raise UserError(f"{name} is {value}; allowed are {low} to {MAX_SEED}.")

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON types."""
        ready = json_ready(self, "spec")
        assert isinstance(ready, dict)
        return ready

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CellSpec:
        """Inverse of ``to_json``.

        Raises:
            UserError: If a key is missing or unknown, or a value is out of range.
        """
        try:
            return cls(
                method=MethodRef(**document["method"]),
                benchmark=BenchmarkRef(**document["benchmark"]),
                seed=document["seed"],
                budget=Budget(**document["budget"]),
            )
        except (KeyError, TypeError) as error:
            raise UserError(f"This is no cell spec: {type(error).__name__}: {error}") from error

    def document_head(self) -> dict[str, Any]:
        """The part of a metrics document that the spec decides."""
        return {"cell_id": self.cell_id, **self.to_json()}

    def canonical_json(self) -> str:
        """The one JSON text of this spec: sorted keys, no spaces, ASCII, shortest floats."""
        return json.dumps(
            self.to_json(),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
            allow_nan=False,
        )

    @property
    def cell_id(self) -> str:
        """SHA-256 (hex) of the canonical JSON."""
        return hashlib.sha256(self.canonical_json().encode("ascii")).hexdigest()

    @property
    def cell_name(self) -> Path:
        """``<method>/<benchmark>-seed<N>-<first 12 of the id>``: the cell's folder in ``runs``."""
        name = f"{self.benchmark.name}-seed{self.seed}-{self.cell_id[:12]}"
        return Path(self.method.name) / name


def build_spec(
    method: Method,
    benchmark: Benchmark,
    *,
    seed: int,
    episodes: int | None = None,
    updates: int | None = None,
) -> CellSpec:
    """The spec of a cell; the benchmark's defaults fill in a budget that is not given.

    Raises:
        UserError: If a number is out of range, the benchmark has fewer tasks than ``episodes``, the
            method's config is not JSON-ready, or the benchmark cannot say its data fingerprint.
    """
    try:
        config = json_ready(method.config, f"config of {method.name}")
    except (TypeError, ValueError) as error:
        raise UserError(f"The method {method.name!r} cannot be pinned down: {error}") from error
    if not isinstance(config, dict):
        raise UserError(
            f"The config of the method {method.name!r} is a {type(method.config).__name__}; it must "
            "be a frozen dataclass or a mapping."
        )
    try:
        fingerprint = benchmark.data_fingerprint()
    except Exception as error:
        raise UserError(
            f"The benchmark {benchmark.name!r} cannot say its data fingerprint: "
            f"{type(error).__name__}: {error}"
        ) from error
    most = getattr(benchmark, "max_episodes", None)  # a plugin may predate it
    if episodes is not None and most is not None and episodes > most:
        raise UserError(
            f"episodes is {episodes}; the benchmark {benchmark.name!r} has {most} held-out tasks, "
            f"so allowed are 1 to {most} (--episodes)."
        )
    return CellSpec(
        method=MethodRef(method.name, method.version, config),
        benchmark=BenchmarkRef(benchmark.name, benchmark.version, fingerprint),
        seed=seed,
        budget=Budget(
            episodes=benchmark.default_episodes if episodes is None else episodes,
            updates=benchmark.default_updates if updates is None else updates,
        ),
    )
