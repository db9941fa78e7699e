"""The policy's scoring path: distribution, masks, padding, configs, and that it can learn to copy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from methods.base import ContextBudget, Demonstration
from methods.config import AttentionConfig, PolicyShape
from methods.layers import select_rows
from methods.policy import SmallPolicy, convert_state
from tests.methods.toy import VOCABULARY, ToySuite

SMALL = PolicyShape(d_model=32, num_layers=2, head_dim=8, d_ff=64, pointer_dim=8)
SUITE = ToySuite()
ALLOWED = torch.from_numpy(SUITE.codec.grammar.allowed)


def make(
    attention: AttentionConfig | None = None, *, shape: PolicyShape = SMALL, seed: int = 0
) -> SmallPolicy:
    g = torch.Generator().manual_seed(seed)
    policy = SmallPolicy(
        shape, attention or AttentionConfig(), SUITE.context, len(VOCABULARY), generator=g
    )
    with torch.no_grad():
        for block in policy.ordered_blocks():
            if block.sink_logits is not None:
                block.sink_logits.normal_(generator=g)
    return policy


def batch(demos: list[Demonstration], pad: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """tokens, lengths, action_mask, grammar_state, padded on the right."""
    lengths = torch.tensor([len(d.tokens) for d in demos])
    tokens = torch.full((len(demos), int(lengths.max())), pad)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    states = torch.full(tokens.shape, -1)
    for row, demo in enumerate(demos):
        n = len(demo.tokens)
        tokens[row, :n] = torch.tensor(demo.tokens)
        mask[row, :n] = torch.tensor(demo.action_mask)
        states[row, :n] = torch.tensor(demo.grammar_state)
    return tokens, lengths, mask, states


def demos(*indices: int) -> list[Demonstration]:
    return [SUITE.demonstration(i, noisy=False, seed=0) for i in indices]


def test_probabilities_of_the_allowed_tokens_sum_to_one() -> None:
    """Pointer and vocabulary together are one distribution over what the grammar allows."""
    tokens, lengths, mask, states = batch(demos(2))
    position = int(torch.nonzero(mask[0])[-2])  # a copied symbol
    options = torch.nonzero(ALLOWED[states[0, position]])[:, 0]
    assert len(options) > 3
    policy, total, nats = make(), 0.0, 0.0
    for option in options.tolist():
        tokens[0, position] = option
        only = torch.zeros_like(mask)
        only[0, position] = True
        scores = policy.score(tokens, lengths, only, states, ALLOWED)
        log_prob = scores.log_probs[0, position].item()
        total += np.exp(log_prob)
        nats -= np.exp(log_prob) * log_prob
    assert total == pytest.approx(1.0, abs=1e-5)
    assert scores.entropy[0, position].item() == pytest.approx(nats, abs=1e-4)


def test_only_action_tokens_are_scored() -> None:
    """G3: observations and padding get 0 and no gradient; the last end-of-action token counts."""
    tokens, lengths, mask, states = batch(demos(2, 5, 9))
    policy = make()
    scores = policy.score(tokens, lengths, mask, states, ALLOWED)
    for values in scores:
        assert values.shape == tokens.shape
        assert (values[~mask] == 0).all()
    assert (scores.log_probs[mask] <= 0).all()
    ends = lengths - 1
    assert mask[torch.arange(3), ends].all()
    (scores.log_probs * ~mask).sum().backward(retain_graph=True)
    assert all(p.grad is None or not p.grad.any() for p in policy.parameters())
    scores.log_probs[0, ends[0]].backward()
    assert policy.pointer_query.grad is not None


def test_padding_and_neighbours_do_not_matter() -> None:
    """A3 for right padding: a row scores the same alone, in a batch, and before other padding."""
    policy, rows = make(), demos(2, 5, 9)
    tokens, lengths, mask, states = batch(rows, pad=0)
    together = policy.score(tokens, lengths, mask, states, ALLOWED)
    other, _, _, _ = batch(rows, pad=17)
    torch.testing.assert_close(
        policy.score(other, lengths, mask, states, ALLOWED).log_probs, together.log_probs
    )
    for row, demo in enumerate(rows):
        alone = policy.score(*batch([demo]), ALLOWED)
        torch.testing.assert_close(
            alone.log_probs[0], together.log_probs[row, : len(demo.tokens)], atol=1e-5, rtol=1e-5
        )


def test_later_tokens_do_not_reach_earlier_scores() -> None:
    tokens, lengths, mask, states = batch(demos(5))
    policy = make()
    before = policy.score(tokens, lengths, mask, states, ALLOWED).log_probs
    changed = tokens.clone()
    changed[:, 40:][~mask[:, 40:]] = 33
    after = policy.score(changed, lengths, mask, states, ALLOWED).log_probs
    torch.testing.assert_close(after[:, :40], before[:, :40])
    assert not torch.allclose(after[:, 40:], before[:, 40:])


@pytest.mark.parametrize("length", [1, 5, 16, 17, 32, 45])
@pytest.mark.parametrize("sinks", [0, 6, 50])
def test_pointer_obeys_window_and_sink_mask(sinks: int, length: int) -> None:
    """Blocked pointer scores equal the dense masked ones, at lengths that no block divides."""
    policy = make()
    policy.context = ContextBudget(window=16, num_sink_tokens=sinks)
    g = torch.Generator().manual_seed(3)
    features = torch.randn(2, length, SMALL.d_model, generator=g)
    hidden = torch.randn(2 * length, SMALL.d_model, generator=g)
    tokens = torch.arange(2 * length).view(2, length)
    with torch.no_grad():
        scores, ids, visible = policy._point(features, hidden, tokens, torch.arange(2 * length))
        keys = torch.nn.functional.rms_norm(features, (SMALL.d_model,)) @ policy.pointer_key.T
        keys = torch.nn.functional.pad(keys[:, :-1], (0, 0, 1, 0))  # read one token earlier
        pointed = hidden @ policy.pointer_query.T
    for source in range(2 * length):
        row, now = divmod(source, length)
        seen = {j for j in range(now + 1) if j < sinks or j > now - 16}
        got = ids[source][visible[source]].tolist()
        assert sorted(got) == [row * length + j for j in sorted(seen)]
        for score, token in zip(scores[source][visible[source]], got, strict=True):
            dot = pointed[source, :-1] @ keys[row, token - row * length] / SMALL.pointer_dim**0.5
            assert float(score) == pytest.approx(float(dot + pointed[source, -1]), abs=1e-4)


def test_copying_is_limited_to_what_is_visible() -> None:
    """With the sinks gone, changing the request cannot move the copy's probabilities (2 layers)."""
    demo = SUITE.demonstration(2, noisy=False, seed=0)
    tokens, lengths, mask, states = batch([demo])
    copy = mask.clone()
    copy[:, :-5] = False
    changed = tokens.clone()
    changed[0, 1:4] = torch.tensor([9, 10, 11])
    for sinks, moved in ((True, True), (False, False)):
        policy = make(AttentionConfig(sink_tokens=sinks))
        a = policy.score(tokens, lengths, copy, states, ALLOWED).log_probs
        b = policy.score(changed, lengths, copy, states, ALLOWED).log_probs
        assert torch.allclose(a, b, atol=1e-6) is not moved


def test_gradient_reaches_every_parameter() -> None:
    policy = make()
    policy.score(*batch(demos(2, 5)), ALLOWED).log_probs.sum().backward()
    missing = [n for n, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []


def test_row_selection_has_the_exact_gradient() -> None:
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    index = torch.tensor([4, 0, 5])
    assert torch.autograd.gradcheck(lambda t: select_rows(t, index), x.requires_grad_())


def test_backends_agree() -> None:
    data = batch(demos(2, 5))
    scores = [
        make(AttentionConfig(backend=name)).score(*data, ALLOWED).log_probs
        for name in ("reference", "blockwise")
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=1e-5)


def test_impossible_actions_are_refused() -> None:
    tokens, lengths, mask, states = batch(demos(2))
    position = int(torch.nonzero(mask[0])[0])
    wrong = tokens.clone()
    wrong[0, position] = 3
    with pytest.raises(ValueError, match=f"row 0, position {position}: token 3"):
        make().score(wrong, lengths, mask, states, ALLOWED)
    with pytest.raises(ValueError, match=r"1\.\.length-1"):
        make().score(tokens, lengths - 1, mask, states, ALLOWED)


def test_same_seed_same_parameters_under_every_attention() -> None:
    first = SmallPolicy(SMALL, AttentionConfig(), SUITE.context, 40)
    second = SmallPolicy(
        SMALL,
        AttentionConfig(sink_logits=False, sink_tokens=False),
        SUITE.context,
        40,
        torch.Generator().manual_seed(0),
    )
    mine = first.state_dict()
    for name, value in second.state_dict().items():
        assert torch.equal(value, mine[name]), name
    other = SmallPolicy(
        SMALL, AttentionConfig(), SUITE.context, 40, torch.Generator().manual_seed(1)
    )
    assert not torch.equal(other.embedding, first.embedding)


def test_state_moves_between_attention_configs() -> None:
    """Dropped sink logits are dropped by name; missing ones are not invented."""
    policy, without = make(), AttentionConfig(sink_tokens=False, sink_logits=False)
    state = convert_state(policy.state_dict(), without)
    assert set(policy.state_dict()) - set(state) == {
        "blocks.0.sink_logits",
        "blocks.1.sink_logits",
    }
    dropped = make(without)
    dropped.load_state_dict(state)
    data = batch(demos(2))
    assert not torch.allclose(
        dropped.score(*data, ALLOWED).log_probs, policy.score(*data, ALLOWED).log_probs
    )
    same = make(AttentionConfig(cache="full"), seed=4)
    same.load_state_dict(convert_state(policy.state_dict(), same.attention))
    assert torch.equal(same.score(*data, ALLOWED).log_probs, policy.score(*data, ALLOWED).log_probs)
    with pytest.raises(ValueError, match="no sink logits"):
        convert_state(state, AttentionConfig())


def test_reach_follows_the_config() -> None:
    def reach(**changes: bool) -> tuple[int, int]:
        policy = make(dataclasses.replace(AttentionConfig(), **changes))
        return policy.window, policy.num_sink_tokens

    assert reach() == (16, 6)
    assert reach(sink_tokens=False) == (16, 0)
    assert reach(sink_tokens=False, widen_window=True) == (22, 0)


def test_default_size_is_about_400_thousand() -> None:
    policy = SmallPolicy(PolicyShape(), AttentionConfig(), ContextBudget(40, 28), 400)
    assert 350_000 < policy.num_parameters < 500_000
    assert policy.summary()["parameters"] == policy.num_parameters
    with pytest.raises(ValueError, match="head_dim=7"):
        SmallPolicy(PolicyShape(head_dim=7), AttentionConfig(), ContextBudget(40, 28), 400)


def copy_loss(sinks: bool) -> float:
    """Mean nats of a copied symbol after a few steps of imitation."""
    policy = make(
        AttentionConfig(sink_tokens=sinks), shape=PolicyShape(d_model=64, num_layers=2, d_ff=96)
    )
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    suite = ToySuite(pages=(2, 3))
    rng = np.random.default_rng(0)
    nats = []
    for _ in range(50):
        rows = [
            suite.demonstration(int(i), noisy=False, seed=0) for i in rng.integers(0, 512, size=16)
        ]
        tokens, lengths, mask, states = batch(rows)
        log_probs = policy.score(tokens, lengths, mask, states, ALLOWED).log_probs
        optimizer.zero_grad()
        (-log_probs.sum() / mask.sum()).backward()
        optimizer.step()
        symbols = mask & (tokens >= 8) & (tokens < 20)
        nats.append(-log_probs[symbols].mean().item())
    return float(np.mean(nats[-10:]))


def test_learns_to_copy_through_the_sinks_and_cannot_without() -> None:
    """Chance is log 12 = 2.5 nats a symbol; the request has left the window when it is asked for."""
    assert copy_loss(sinks=True) < 1.0
    assert copy_loss(sinks=False) > 2.0
