"""A3: padding and packing. The same document gives the same result wherever it stands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.attention import sink_attention
from methods.attention.layout import layout_of

BACKENDS = ["reference", "blockwise"]
WINDOWS = [6, None]


def _attend(x: list[Tensor], logits: Tensor, ids: Tensor | None, window: int | None, backend: str):
    return sink_attention(
        *x,
        window=window,
        num_sink_tokens=3,
        sink_logits=logits,
        document_ids=ids,
        backend=backend,
    )


def _pad(x: list[Tensor], left: int, right: int) -> list[Tensor]:
    """Padding holds large numbers, so that a leak cannot hide."""
    return [torch.nn.functional.pad(t, (0, 0, left, right), value=50.0) for t in x]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_alone_padded_or_packed_is_the_same(make_inputs, backend, window):
    """A3: alone, left-padded by 5, right-padded by 5, and packed behind another document."""
    one = make_inputs(rows=1, length=20)
    other = make_inputs(rows=1, length=13, seed=1)
    leaves, logits = one.leaves(False), one.sink_logits
    alone = _attend(leaves, logits, None, window, backend)

    left = torch.tensor([[-1] * 5 + [0] * 20])
    out = _attend(_pad(leaves, 5, 0), logits, left, window, backend)
    torch.testing.assert_close(out[:, :, 5:], alone, rtol=0, atol=1e-12)
    assert not out[:, :, :5].any()

    out = _attend(_pad(leaves, 0, 5), logits, left.flip(1), window, backend)
    torch.testing.assert_close(out[:, :, :20], alone, rtol=0, atol=1e-12)
    assert not out[:, :, 20:].any()

    packed = [torch.cat(pair, 2) for pair in zip(other.leaves(False), leaves, strict=True)]
    ids = torch.tensor([[7] * 13 + [2] * 20])
    out = _attend(packed, logits, ids, window, backend)
    torch.testing.assert_close(out[:, :, 13:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_changing_one_document_leaves_the_other_untouched(make_inputs, backend, window):
    """A3: outputs and gradients of document 2 are the same to the bit."""
    ids = torch.tensor([[0] * 11 + [1] * 19 + [-1] * 2])
    results = []
    for change in (0.0, 3.0):
        inputs = make_inputs(rows=1, length=32)
        leaves = [x.detach().clone() for x in inputs.leaves(False)]
        for x in leaves:
            x[:, :, :11] += change
            x.requires_grad_()
        out = _attend(leaves, inputs.sink_logits, ids, window, backend)
        grads = torch.autograd.grad(out, leaves, inputs.weight)
        results.append([x[:, :, 11:30] for x in (out, *grads)])
    for before, after in zip(*results, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_rows_that_see_nothing_give_zero_and_no_gradient(make_inputs, backend, window):
    inputs = make_inputs(rows=3, length=18)
    ids = torch.zeros(3, 18, dtype=torch.int32)
    ids[0, :4], ids[1, 15:], ids[2] = -1, -1, -1
    out = _attend(inputs.leaves(False), inputs.sink_logits, ids, window, backend)
    grads = torch.autograd.grad(out, inputs.leaves(True), inputs.weight)
    padding = (ids == -1)[:, None, :, None]
    for x in (out, *grads[:3]):
        assert not (x * padding).any()
        assert x.isfinite().all()
    assert out[0, :, 4:].abs().min() > 0


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("window", [1, 5, 40, None])
def test_random_packings_equal_the_reference(make_inputs, window, logits):
    g = torch.Generator().manual_seed(3)
    for length in (1, 9, 64, 100):
        inputs = make_inputs(rows=3, length=length)
        ids = torch.randint(-1, 6, (3, length), generator=g).sort(1).values
        results = []
        for backend in BACKENDS:
            out = sink_attention(
                *inputs.leaves(False),
                window=window,
                num_sink_tokens=4,
                sink_logits=inputs.sink_logits if logits else None,
                document_ids=ids,
                backend=backend,
            )
            grads = torch.autograd.grad(out, inputs.leaves(logits), inputs.weight)
            results.append((out, *grads))
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_ids_changed_in_place_are_seen(make_inputs):
    """Layouts are kept between calls, by value: a mutated tensor must not meet its old layout."""
    inputs = make_inputs(rows=1, length=12)
    ids = torch.zeros(1, 12, dtype=torch.int64)
    before = _attend(inputs.leaves(False), inputs.sink_logits, ids, 4, "blockwise")
    ids[:, 6:] = 1
    after = _attend(inputs.leaves(False), inputs.sink_logits, ids, 4, "blockwise")
    expected = _attend(inputs.leaves(False), inputs.sink_logits, ids, 4, "reference")
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)


def test_a_document_in_two_runs_is_refused():
    with pytest.raises(ValueError, match="id 3 appears in 2 separate runs of row 1"):
        layout_of(torch.tensor([[0, 0, 1, 1], [3, 4, 3, 3]]))


def test_ids_below_padding_are_refused():
    with pytest.raises(ValueError, match="document_ids holds -2; allowed"):
        layout_of(torch.tensor([[0, -2]]))


def test_layout_kinds():
    assert layout_of(torch.tensor([[4, 4], [0, 0]])).kind == "plain"
    assert layout_of(torch.tensor([[4, -1], [-1, -1]])).kind == "right-padded"
    assert layout_of(torch.tensor([[-1, 4], [0, 0]])).kind == "packed"
    assert layout_of(torch.tensor([[0, 1]])).documents() == [(0, 0, 1), (0, 1, 2)]
