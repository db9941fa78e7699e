"""The fingerprint of float arithmetic: stable here, and sensitive to a single bit."""

from __future__ import annotations

import re

import torch

from harness.numerics import _grid, numerics_fingerprint, numerics_report


def test_the_same_process_gives_the_same_fingerprint() -> None:
    assert numerics_report() == numerics_report()
    assert re.fullmatch("[0-9a-f]{64}", numerics_fingerprint())


def test_inputs_are_exact_and_cover_the_range() -> None:
    grid = _grid(1000, salt=1)
    assert torch.equal(grid * 2**15, (grid * 2**15).round())
    assert grid.min() < -0.95
    assert grid.max() > 0.95
    assert not torch.equal(grid, _grid(1000, salt=2))


def test_one_flipped_bit_in_one_kernel_shows_in_its_digest_alone(monkeypatch) -> None:
    before = numerics_report()
    exact = torch.exp

    def off_by_one_bit(x: torch.Tensor) -> torch.Tensor:
        y = exact(x)
        y.view(torch.int32)[17] ^= 1
        return y

    monkeypatch.setattr(torch, "exp", off_by_one_bit)
    after = numerics_report()
    assert [name for name in before if before[name] != after[name]] == ["exp"]
    assert numerics_fingerprint(after) != numerics_fingerprint(before)


def test_the_global_generator_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    numerics_fingerprint()
    assert torch.equal(state, torch.random.get_rng_state())
