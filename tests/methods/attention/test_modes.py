"""What is kept between calls, under the modes a caller may be in: inference, autocast, sweeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from methods.attention import blocks, layout, packing, sink_attention
from methods.attention.flex import block_mask, flex_sink_attention
from tests.methods.attention.test_flex import _stand_in

IDS = {
    "none": None,
    "right-padded": [[0] * 30, [0] * 24 + [-1] * 6],
    "left-padded": [[0] * 30, [-1] * 6 + [0] * 24],
    "packed": [[0] * 11 + [1] * 19, [-1] * 3 + [4] * 20 + [5] * 7],
}


@pytest.fixture
def nothing_kept():
    """As in a fresh process: what another test has kept must not stand in."""
    layout._cache.clear()
    packing.plan_for_rows.cache_clear()
    blocks.mask_table.cache_clear()


def _ids(documents: str) -> Tensor | None:
    return None if IDS[documents] is None else torch.tensor(IDS[documents])


def _attend(inputs, ids: Tensor | None, backend: str, **arguments) -> Tensor:
    shared = {"num_sink_tokens": 3, "sink_logits": inputs.sink_logits, **arguments}
    if backend != "flex":
        return sink_attention(*inputs.leaves(False), document_ids=ids, backend=backend, **shared)
    known = layout.plain_layout(2, 30) if ids is None else layout.layout_of(ids)
    return flex_sink_attention(
        *inputs.leaves(False), scale=0.5, layout=known, kernel=_stand_in, **shared
    )


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("documents", IDS)
@pytest.mark.parametrize("window", [6, None])
@pytest.mark.parametrize("backend", ["reference", "blockwise", "flex"])
def test_training_after_inference_mode_on_the_same_documents(
    make_inputs, backend, window, documents
):
    """Tables first built under inference_mode serve a backward pass, with the same numbers."""
    inputs = make_inputs(length=30)
    with torch.inference_mode():
        inferred = _attend(inputs, _ids(documents), backend, window=window)
    out = _attend(inputs, _ids(documents), backend, window=window)
    grads = torch.autograd.grad(out, inputs.leaves(True), inputs.weight)
    assert torch.equal(out, inferred)
    assert all(g.isfinite().all() and g.any() for g in grads)


@pytest.mark.usefixtures("nothing_kept")
def test_nothing_kept_is_an_inference_tensor():
    """Not even where today's code happens not to save it for a backward pass."""
    with torch.inference_mode():
        kept = layout.layout_of(torch.tensor(IDS["packed"]))
        kept.padding_on(torch.device("cpu"))
        key = blocks.PlanKey(6, 3, 2, True, torch.float32, torch.device("cpu"))
        moved = packing.packing_for(key, kept, 2)
        plan = packing.plan_for_rows(key, 4, 30)
        mask = block_mask(kept, 6, 3, torch.device("cpu"))
        assert torch.zeros(1).is_inference()
    tables = [
        *(kept.document_row, kept.document_start, kept.document_stop, kept.padding),
        *(x for x in kept.scratch.values() if isinstance(x, Tensor)),
        *(moved.slot_source, moved.token_slot, moved.plan.masks, moved.plan.mask_of),
        *(moved.plan.sink_slots, plan.masks, plan.mask_of),
        *(mask.kv_indices, mask.kv_num_blocks, mask.q_indices, mask.full_kv_indices),
        layout._cache[0][0],
    ]
    assert not any(x.is_inference() for x in tables)


@pytest.mark.usefixtures("nothing_kept")
def test_a_swept_scale_keeps_one_table(make_inputs):
    """A scale of any value (a temperature, say) shares the tables, and each call uses its own."""
    inputs, ids = make_inputs(length=30), _ids("packed")
    layout_tables = layout.layout_of(ids).scratch
    for scale in (0.1, 0.2, 0.3):
        got = _attend(inputs, ids, "blockwise", window=6, scale=scale)
        want = _attend(inputs, ids, "reference", window=6, scale=scale)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        _attend(inputs, None, "blockwise", window=6, scale=scale)
    assert sorted(name[0] for name in layout_tables) == ["packing", "padding"]
    assert packing.plan_for_rows.cache_info().currsize == 1


@pytest.mark.usefixtures("nothing_kept")
def test_a_swept_window_does_not_grow_without_bound(make_inputs):
    inputs, ids = make_inputs(rows=1, length=80), torch.tensor([[0] * 30 + [1] * 50])
    for window in range(1, 75):
        _attend(inputs, ids, "blockwise", window=window)
    kept = layout.layout_of(ids).scratch
    assert 8 < len(kept) <= 32
    assert [name[1].window for name in kept][-1] == 74


@pytest.mark.parametrize("window", [6, None])
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_autocast_does_not_split_the_backends(make_inputs, backend, window):
    """The same bits with autocast on: otherwise one backend would compute in bfloat16, silently."""
    inputs = make_inputs(length=30, dtype=torch.float32)
    out = _attend(inputs, _ids("packed"), backend, window=window)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = _attend(inputs, _ids("packed"), backend, window=window)
        assert torch.is_autocast_enabled("cpu")
    assert inside.dtype == torch.float32
    assert torch.equal(inside, out)
    for got, expected in zip(
        torch.autograd.grad(inside, inputs.leaves(True), inputs.weight),
        torch.autograd.grad(out, inputs.leaves(True), inputs.weight),
        strict=True,
    ):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("junk", [float("nan"), float("inf")])
@pytest.mark.parametrize("documents", ["right-padded", "left-padded", "packed"])
@pytest.mark.parametrize("window", [6, None])
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_non_finite_padding_changes_nothing(make_inputs, backend, window, documents, junk):
    """Outputs and all gradients to the bit, whatever query, key, value and upstream hold there."""
    ids = _ids(documents)
    results = []
    for fill in (0.5, junk):
        inputs = make_inputs(length=30)
        padding = (ids == -1)[:, None, :, None]
        for x in (*inputs.leaves(False), inputs.weight):
            x.data.masked_fill_(padding, fill)
        out = _attend(inputs, ids, backend, window=window)
        results.append((out, *torch.autograd.grad(out, inputs.leaves(True), inputs.weight)))
    for finite, other in zip(*results, strict=True):
        assert torch.equal(finite, other)
