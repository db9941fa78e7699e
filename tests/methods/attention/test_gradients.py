"""Exact gradients of blockwise: ``gradcheck`` compares them with finite differences in float64."""

from __future__ import annotations

import pytest
import torch

from methods.attention import sink_attention


@pytest.mark.parametrize(
    ("window", "sinks"),
    [(None, 0), (5, 0), (5, 3), (1, 0), (1, 2), (16, 4)],
    ids=["causal", "window", "window-and-sinks", "self", "self-and-sinks", "one-short-of-full"],
)
@pytest.mark.parametrize("logits", [True, False], ids=["logits", "no-logits"])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=["plain-heads", "grouped-heads"])
@pytest.mark.parametrize("documents", ["none", "right-padded", "left-padded", "packed"])
def test_gradcheck(make_inputs, window, sinks, logits, heads, documents):
    length = 17
    inputs = make_inputs(rows=1, heads=heads[0], key_heads=heads[1], length=length, width=2)
    ids = {
        "none": None,
        "right-padded": [0] * 14 + [-1] * 3,
        "left-padded": [-1] * 3 + [0] * 14,
        "packed": [0] * 4 + [-1] + [1] * 10 + [2] * 2,
    }[documents]

    def attend(query, key, value, sink_logits=None):
        return sink_attention(
            query,
            key,
            value,
            window=window,
            num_sink_tokens=sinks,
            sink_logits=sink_logits,
            document_ids=None if ids is None else torch.tensor([ids]),
            backend="blockwise",
        )

    assert torch.autograd.gradcheck(attend, inputs.leaves(logits), fast_mode=True)


@pytest.mark.parametrize("window", [5, None])
def test_gradcheck_of_every_entry(make_inputs, window):
    """The slow mode of gradcheck looks at each entry of the Jacobian, not at a random projection."""
    inputs = make_inputs(rows=1, heads=2, key_heads=1, length=13, width=2)

    def attend(query, key, value, sink_logits):
        return sink_attention(
            query,
            key,
            value,
            window=window,
            num_sink_tokens=2,
            sink_logits=sink_logits,
            backend="blockwise",
        )

    assert torch.autograd.gradcheck(attend, inputs.leaves(True))


def test_only_the_gradients_asked_for(make_inputs):
    inputs = make_inputs(length=30)
    out = sink_attention(
        inputs.query.detach(), inputs.key, inputs.value.detach(), window=8, backend="blockwise"
    )
    (grad,) = torch.autograd.grad(out, [inputs.key], inputs.weight)
    out = sink_attention(inputs.query, inputs.key, inputs.value, window=8, backend="reference")
    (expected,) = torch.autograd.grad(out, [inputs.key], inputs.weight)
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-12)


def test_a_second_derivative_is_refused_not_wrong(make_inputs):
    inputs = make_inputs(length=30)
    out = sink_attention(*inputs.leaves(False), window=8, backend="blockwise")
    with pytest.raises(RuntimeError, match="use backend='reference' for second derivatives"):
        torch.autograd.grad(out.sum(), [inputs.query], create_graph=True)


@pytest.mark.parametrize("window", [8, None])
def test_same_bits_every_time(make_inputs, window):
    def run():
        inputs = make_inputs(rows=3, length=200, dtype=torch.float32)
        out = sink_attention(
            *inputs.leaves(False),
            window=window,
            num_sink_tokens=5,
            sink_logits=inputs.sink_logits,
            backend="blockwise",
        )
        return (out, *torch.autograd.grad(out, inputs.leaves(True), inputs.weight))

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))
