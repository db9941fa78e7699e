"""The parts of the flex backend that need no CUDA: masks, rescaling, and refusing to run uncompiled."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_mask, flex_attention

from methods.attention import sink_attention
from methods.attention.flex import BLOCK, block_mask, flex_sink_attention
from methods.attention.layout import layout_of, visible

LAYOUTS = {
    "plain": [(0, 300)],
    "right-padded": [(0, 170), (-1, 130)],
    "left-padded": [(-1, 140), (0, 160)],
    "packed": [(0, 40), (1, 150), (-1, 3), (2, 107)],
}


def _layout(name: str):
    row = torch.cat([torch.full((count,), label) for label, count in LAYOUTS[name]])
    return layout_of(torch.stack([row, row])), torch.stack([row, row])


@pytest.mark.parametrize("name", LAYOUTS)
def test_block_masks_never_hide_or_show_a_pair_wrongly(name):
    """A block left out holds no visible pair; a block marked full holds visible pairs only."""
    layout, _ = _layout(name)
    edge = -300 % BLOCK
    for window, sinks in itertools.product((None, 1, 7, 130, 256), (0, 4, 140)):
        mask = block_mask(layout, window, sinks, torch.device("cpu"))
        seen = visible(300, window, sinks, layout)
        seen = seen if seen.dim() == 3 else seen[None]
        pairs = create_mask(mask.mask_mod, seen.shape[0], 1, 300, 300, device="cpu")[:, 0]
        assert torch.equal(pairs, seen)
        cut = torch.nn.functional.pad(seen, (0, edge, 0, edge)).unflatten(2, (-1, BLOCK))
        any_seen = cut.unflatten(1, (-1, BLOCK)).any(4).any(2)
        visited = mask.to_dense()[:, 0].bool()
        assert not (any_seen & ~visited).any()
        for row, block in itertools.product(range(seen.shape[0]), range(visited.shape[1])):
            chosen = int(mask.full_kv_num_blocks[row, 0, block])
            for k in mask.full_kv_indices[row, 0, block, :chosen].tolist():
                part = seen[row, block * BLOCK : (block + 1) * BLOCK, k * BLOCK : (k + 1) * BLOCK]
                assert part.all()


def _stand_in(query, key, value, mask, scale, grouped):
    """The kernel's contract, written out, with gradients through output and log-sum-exp."""
    group = query.shape[1] // key.shape[1]
    assert grouped == (group > 1)
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    seen = create_mask(mask.mask_mod, query.shape[0], 1, query.shape[2], query.shape[2], "cpu")
    blind = ~seen.any(-1, keepdim=True)
    scores = (query @ key.mT * scale).masked_fill(~seen, -1e30)
    out = (scores.softmax(-1) @ value).masked_fill(blind, 0)
    return out, SimpleNamespace(lse=scores.logsumexp(-1).masked_fill(blind[..., 0], -torch.inf))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("window", [20, None])
def test_rescaling_by_the_log_sum_exp_is_exact(make_inputs, name, window):
    """Values and all gradients, sink logits included, equal blockwise."""
    layout, ids = _layout(name)
    inputs = make_inputs(rows=2, heads=4, key_heads=2, length=300)
    shared = {"window": window, "num_sink_tokens": 4, "sink_logits": inputs.sink_logits}
    got = flex_sink_attention(
        *inputs.leaves(False), **shared, scale=0.5, layout=layout, kernel=_stand_in
    )
    want = sink_attention(*inputs.leaves(False), **shared, scale=0.5, document_ids=ids)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for g, w in zip(
        torch.autograd.grad(got, inputs.leaves(True), inputs.weight),
        torch.autograd.grad(want, inputs.leaves(True), inputs.weight),
        strict=True,
    ):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-11)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_torch_flex_attention_keeps_the_contract(make_inputs):
    """torch's own function (forward; it has no backward on a CPU) under our block mask."""

    def kernel(query, key, value, mask, scale, grouped):
        return flex_attention(
            query,
            key,
            value,
            block_mask=mask,
            scale=scale,
            enable_gqa=grouped,
            return_aux=AuxRequest(lse=True),
        )

    layout, ids = _layout("packed")
    inputs = make_inputs(rows=2, heads=4, key_heads=2, length=300, width=16, dtype=torch.float32)
    leaves = [x.detach() for x in inputs.leaves(True)]
    shared = {"window": 20, "num_sink_tokens": 4, "sink_logits": leaves[3]}
    got = flex_sink_attention(*leaves[:3], **shared, scale=0.25, layout=layout, kernel=kernel)
    want = sink_attention(*leaves[:3], **shared, scale=0.25, document_ids=ids)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_uncompiled_is_an_error_not_a_slow_path(make_inputs):
    """A5: with the compiler switched off, torch would write out T x T and say nothing."""
    layout, _ = _layout("plain")
    inputs = make_inputs(rows=2, length=300, dtype=torch.float32)
    leaves = [x.detach() for x in inputs.leaves(False)]
    torch.compiler.set_stance("force_eager")
    try:
        with pytest.raises(RuntimeError, match="uncompiled, which takes memory quadratic in T"):
            flex_sink_attention(
                *leaves,
                window=20,
                num_sink_tokens=4,
                sink_logits=None,
                scale=0.5,
                layout=layout,
            )
    finally:
        torch.compiler.set_stance("default")
