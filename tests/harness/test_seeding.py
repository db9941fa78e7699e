"""Seeds: pinned, apart from each other, and never global."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.seeding import HashSeeds

GOLDEN = Path(__file__).parents[1] / "golden" / "seeds.json"


def test_seeds_and_first_draws_are_pinned() -> None:
    """A change here changes every result: it must be meant."""
    for case in json.loads(GOLDEN.read_text()):
        seeds = HashSeeds(case["root"])
        call = (case["role"], *case["path"])
        assert seeds.integer(*call) == case["integer"]
        assert seeds.numpy(*call).integers(2**32, size=2).tolist() == case["numpy"]
        drawn = torch.randint(2**32, (2,), generator=seeds.torch(*call))
        assert drawn.tolist() == case["torch"]


def test_every_part_of_the_key_counts_and_none_runs_into_another() -> None:
    keys = [
        HashSeeds(root).integer(role, *path)
        for root in (0, 1, 11)
        for role in ("a", "a1", "b")
        for path in [(), (1,), (1, 1), (11,), (1, 0), (0, 1), (-1,)]
    ]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**63 for key in keys)


def test_numpy_integers_are_integers_and_other_types_are_refused() -> None:
    seeds = HashSeeds(7)
    assert seeds.integer("role", np.int64(3)) == seeds.integer("role", 3)
    assert HashSeeds(np.int64(7)).integer("role") == seeds.integer("role")
    with pytest.raises(TypeError):
        seeds.integer("role", 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="role"):
        seeds.integer(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        seeds.integer("")


def test_generators_are_independent_of_each_other_and_of_the_global_ones() -> None:
    seeds = HashSeeds(1)
    first = seeds.numpy("x").normal(size=4)
    states = random.getstate(), torch.random.get_rng_state()
    other = seeds.torch("x")
    torch.rand(5, generator=other)
    seeds.numpy("y").normal(size=100)
    assert np.array_equal(seeds.numpy("x").normal(size=4), first)
    assert random.getstate() == states[0]
    assert torch.equal(torch.random.get_rng_state(), states[1])


def test_integer_seeds_need_neither_numpy_nor_torch() -> None:
    script = (
        "import sys; from harness.seeding import HashSeeds; HashSeeds(1).integer('x', 2);"
        "print([m for m in ('numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
