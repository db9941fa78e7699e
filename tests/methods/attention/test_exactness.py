"""Values: against the sentence that defines the attention, and blockwise against the reference."""

from __future__ import annotations

import pytest
import torch

from methods.attention import record_paths, sink_attention


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_window_counts_the_query(backend: str) -> None:
    """A1: equal scores average the visible values, so a window of W + 1 shows at index 3."""
    zeros = torch.zeros(1, 1, 8, 1, dtype=torch.float64)
    value = torch.arange(8.0, dtype=torch.float64).view(1, 1, 8, 1)
    out = sink_attention(
        zeros, zeros, value, window=3, sink_logits=torch.tensor([-1e9]), backend=backend
    )
    assert out.flatten().tolist() == pytest.approx([0, 0.5, 1, 2, 3, 4, 5, 6], abs=1e-12)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_sink_tokens_stay_visible_behind_the_window(backend: str) -> None:
    zeros = torch.zeros(1, 1, 8, 1, dtype=torch.float64)
    value = torch.arange(8.0, dtype=torch.float64).view(1, 1, 8, 1)
    out = sink_attention(zeros, zeros, value, window=2, num_sink_tokens=1, backend=backend)
    expected = [0, 1 / 2, 3 / 3, 5 / 3, 7 / 3, 9 / 3, 11 / 3, 13 / 3]
    assert out.flatten().tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_a_sink_logit_takes_its_share_of_the_weight_and_gives_nothing(backend: str) -> None:
    zeros = torch.zeros(1, 1, 4, 1, dtype=torch.float64)
    ones = torch.ones_like(zeros)
    out = sink_attention(
        zeros, zeros, ones, window=2, sink_logits=torch.zeros(1).double(), backend=backend
    )
    assert out.flatten().tolist() == pytest.approx([1 / 2, 2 / 3, 2 / 3, 2 / 3], abs=1e-12)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("window", [1, 3, 8, None])
@pytest.mark.parametrize("sinks", [0, 2, 30])
@pytest.mark.parametrize("logits", [False, True])
def test_equals_the_definition_in_loops(make_inputs, by_loops, backend, window, sinks, logits):
    inputs = make_inputs(length=23, key_heads=2, heads=4)
    ids = torch.zeros(2, 23, dtype=torch.int64)
    ids[0, :3], ids[0, 12:] = -1, 5
    ids[1, 20:] = -1
    for documents in (None, ids):
        expected = by_loops(
            inputs,
            window=window,
            num_sink_tokens=sinks,
            logits=logits,
            scale=0.7,
            document_ids=documents,
        )
        out = sink_attention(
            inputs.query,
            inputs.key,
            inputs.value,
            window=window,
            num_sink_tokens=sinks,
            sink_logits=inputs.sink_logits if logits else None,
            scale=0.7,
            document_ids=documents,
            backend=backend,
        )
        torch.testing.assert_close(out.detach(), expected, rtol=0, atol=1e-12)


WINDOW = 20


@pytest.mark.parametrize("length", [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 127, 128, 129, 257])
@pytest.mark.parametrize("sinks", [0, 5, 300])
@pytest.mark.parametrize("window", [WINDOW, None])
def test_lengths_that_no_block_divides(make_inputs, length, sinks, window):
    """A2: values and every gradient equal the materialised float64 reference; S >= T too."""
    inputs = make_inputs(rows=2, heads=8, key_heads=2, length=length)
    _assert_equal_to_reference(inputs, window=window, num_sink_tokens=sinks)


@pytest.mark.parametrize("window", [1, 2, 63, 128, 700])
@pytest.mark.parametrize("sinks", [1, 40])
def test_windows_of_any_size(make_inputs, window, sinks):
    """Windows of one block, of several, and wide enough for the looped path."""
    inputs = make_inputs(rows=1, heads=2, key_heads=2, length=900)
    _assert_equal_to_reference(inputs, window=window, num_sink_tokens=sinks)


def test_more_blocks_than_one_tile_holds(make_inputs, monkeypatch):
    from methods.attention import looped, tiled

    for module in (tiled, looped):
        monkeypatch.setattr(module, "tile_elements", lambda device: 3000)
    inputs = make_inputs(rows=2, heads=6, key_heads=2, length=150)
    for window in (16, None):
        _assert_equal_to_reference(inputs, window=window, num_sink_tokens=3)


@pytest.mark.parametrize("sequences", [1, 3])
def test_more_rows_and_heads_than_one_part_holds(make_inputs, monkeypatch, sequences):
    from methods.attention import tiled

    inputs = make_inputs(rows=5, heads=4, key_heads=2, length=60)
    monkeypatch.setattr(tiled, "_PART_ELEMENTS", sequences * 60 * 4)
    packed = torch.tensor([[-1] + [0] * 30 + [1] * 29]).expand(5, 60)
    for ids in (None, packed):
        _assert_equal_to_reference(inputs, window=16, num_sink_tokens=3, document_ids=ids)


def test_inputs_in_any_memory_order(make_inputs):
    """A projection gives [B, T, H, D] seen as [B, H, T, D], and so may the incoming gradient be."""
    inputs = make_inputs(rows=2, heads=4, key_heads=2, length=70)
    for name in ("query", "key", "value", "weight"):
        x = getattr(inputs, name).detach()
        turned = x.transpose(1, 2).contiguous().transpose(1, 2)
        setattr(inputs, name, turned.requires_grad_(name != "weight"))
    for window in (16, None):
        _assert_equal_to_reference(inputs, window=window, num_sink_tokens=3)


def _assert_equal_to_reference(inputs, **arguments):
    results = {}
    for backend in ("reference", "blockwise"):
        with record_paths() as paths:
            out = sink_attention(
                inputs.query,
                inputs.key,
                inputs.value,
                sink_logits=inputs.sink_logits,
                backend=backend,
                **arguments,
            )
        assert paths[0].backend == backend
        grads = torch.autograd.grad(out, inputs.leaves(True), inputs.weight)
        results[backend] = (out.detach(), *grads)
    for got, expected in zip(results["blockwise"], results["reference"], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_lower_precisions(make_inputs, backend, dtype, tolerance):
    exact = make_inputs(length=90, width=8)
    low = [x.detach().to(dtype).requires_grad_() for x in exact.leaves(True)]
    arguments = {"window": 16, "num_sink_tokens": 3, "backend": backend}
    out = sink_attention(*low[:3], sink_logits=low[3], **arguments)
    upcast = [x.detach().double().requires_grad_() for x in low]
    expected = sink_attention(*upcast[:3], sink_logits=upcast[3], window=16, num_sink_tokens=3)
    assert out.dtype == dtype
    assert (out.double() - expected).abs().max() < tolerance
    weight = exact.weight.to(dtype)
    got = torch.autograd.grad(out, low, weight)
    want = torch.autograd.grad(expected, upcast, weight.double())
    for g, w, x in zip(got, want, low, strict=True):
        assert g.dtype == x.dtype
        assert (g.double() - w).abs().max() < tolerance * max(1.0, float(w.abs().max()))


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("window", [8, None])
def test_sink_logits_of_a_hundred_stay_finite(make_inputs, backend, window):
    """At -100 the logit changes nothing, at +100 it takes all; no overflow, forward or backward."""
    inputs = make_inputs(heads=2, key_heads=1, length=40, dtype=torch.float32)
    logits = torch.tensor([100.0, -100.0], requires_grad=True)
    arguments = {"window": window, "num_sink_tokens": 2, "backend": backend}
    out = sink_attention(*inputs.leaves(False), sink_logits=logits, **arguments)
    grads = torch.autograd.grad(out, [*inputs.leaves(False), logits], inputs.weight)
    assert all(bool(x.isfinite().all()) for x in (out, *grads))
    without = sink_attention(*inputs.leaves(False), **arguments)
    assert out[:, 0].abs().max() < 1e-30
    torch.testing.assert_close(out[:, 1], without[:, 1], rtol=0, atol=1e-6)
