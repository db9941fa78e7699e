"""Generation: cache path against training path, one generator a trajectory, grammar, masks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from methods.base import Episode
from methods.config import AttentionConfig, PolicyShape
from methods.policy import SmallPolicy
from methods.rollout import generate
from tests.methods.toy import ToyCodec, ToySuite

SHAPE = PolicyShape(d_model=48, num_layers=3, head_dim=12, d_ff=96, pointer_dim=16)
SUITE = ToySuite(patient=True)
GRAMMAR = SUITE.codec.grammar
TASKS = [3, 11, 4, 7, 7, 20, 33]

CONFIGS = {
    "rolling": AttentionConfig(),
    "full": AttentionConfig(cache="full"),
    "reference": AttentionConfig(cache="full", backend="reference"),
    "no sinks": AttentionConfig(sink_tokens=False, sink_logits=False, widen_window=True),
    "sink tokens only": AttentionConfig(sink_logits=False),
}


@cache
def policy(name: str = "rolling", suite: ToySuite = SUITE) -> SmallPolicy:
    """A random policy with weights large enough to have preferences."""
    g = torch.Generator().manual_seed(2)
    built = SmallPolicy(SHAPE, CONFIGS[name], suite.context, len(suite.codec.vocabulary), g)
    with torch.no_grad():
        built.head.mul_(2.0)
        for block in built.ordered_blocks():
            if block.sink_logits is not None:
                block.sink_logits.normal_(generator=g)
    return built


def run(name: str = "rolling", suite: ToySuite = SUITE, **options: Any) -> list[Episode]:
    def generator(place: int) -> np.random.Generator:
        return np.random.default_rng([place, 1])

    return generate(policy(name, suite), suite, "train", TASKS, generator, **options)


def scored(name: str, episodes: list[Episode], suite: ToySuite = SUITE) -> list[np.ndarray]:
    """Training-path log-probs of each episode, padded together as the trainer would."""
    lengths = [len(e.tokens) for e in episodes]
    shape = (len(episodes), max(lengths))
    tokens, states = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, e in enumerate(episodes):
        tokens[row, : lengths[row]] = torch.tensor(e.tokens)
        mask[row, : lengths[row]] = torch.tensor(e.action_mask)
        states[row, : lengths[row]] = torch.tensor(e.grammar_state)
    allowed = torch.from_numpy(suite.codec.grammar.allowed)
    with torch.no_grad():
        scores = policy(name, suite).score(tokens, torch.tensor(lengths), mask, states, allowed)
    return [scores.log_probs[row, :n].numpy() for row, n in enumerate(lengths)]


@pytest.mark.parametrize("name", CONFIGS)
def test_rollout_log_probs_equal_training_log_probs(name: str) -> None:
    """G4: cache path against training path, under 1e-4, over episodes several windows long."""
    episodes = run(name)
    lengths = [len(e.tokens) for e in episodes]
    assert max(lengths) > 5 * SUITE.context.window
    assert len(set(lengths)) > 3
    for episode, expected in zip(episodes, scored(name, episodes), strict=True):
        assert np.abs(np.array(episode.log_probs) - expected).max() < 1e-5


def test_log_probs_agree_after_observations_longer_than_the_cache() -> None:
    """G4 with prefills of several pieces, each longer than W + S."""
    suite = ToySuite(patient=True, pages=(2, 3), page_words=(5, 190))
    episodes = run(suite=suite)
    longest = max(stop - start for e in episodes for start, stop, _ in e.turns)
    assert longest > 130
    for episode, expected in zip(episodes, scored("rolling", episodes, suite), strict=True):
        assert np.abs(np.array(episode.log_probs) - expected).max() < 1e-5


def test_cache_modes_sample_the_same_episodes() -> None:
    """What eviction drops is what no query sees: same tokens, more memory."""
    rolling, full = run("rolling"), run("full")
    assert [e.tokens for e in rolling] == [e.tokens for e in full]
    for a, b in zip(rolling, full, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
        assert a.metrics["kv_cache_peak_bytes"] < b.metrics["kv_cache_peak_bytes"]


def test_an_episode_does_not_depend_on_its_batch() -> None:
    """B3: 1, 4 and all rows at a time give identical episodes; group members differ."""
    together = run()
    for width in (1, 4):
        for a, b in zip(run(max_batch=width), together, strict=True):
            assert (a.task_index, a.tokens, a.grammar_state) == (
                b.task_index,
                b.tokens,
                b.grammar_state,
            )
            assert (a.reward, a.metrics, a.tier, a.turns) == (b.reward, b.metrics, b.tier, b.turns)
            np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
    assert together[3].task_index == together[4].task_index == 7
    assert together[3].tokens != together[4].tokens


def test_sampling_repeats_to_the_bit() -> None:
    assert run() == run()


def test_actions_obey_the_grammar_and_are_masked() -> None:
    """G3: exactly the sampled tokens are marked, the last end-of-action token included."""
    codec = ToyCodec()
    for episode in run():
        assert episode.turns[0] == (0, episode.turns[0][1], "observation")
        assert episode.turns[-1][1] == len(episode.tokens)
        assert [role for _, _, role in episode.turns] == ["observation", "action"] * (
            len(episode.turns) // 2
        )
        for start, stop, role in episode.turns:
            assert set(episode.action_mask[start:stop]) == {role == "action"}
            if role == "observation":
                assert set(episode.grammar_state[start:stop]) == {-1}
                assert set(episode.log_probs[start:stop]) == {0.0}
                continue
            state = GRAMMAR.start
            for token, before in zip(
                episode.tokens[start:stop], episode.grammar_state[start:stop], strict=True
            ):
                assert before == state
                assert GRAMMAR.allowed[state, token]
                state = int(GRAMMAR.next_state[state, token])
            assert state == GRAMMAR.final
            assert codec.decode_action(episode.tokens[start:stop])
        assert episode.action_mask[-1]


def test_observations_are_the_environments() -> None:
    """Replaying the decoded actions gives the same observations, reward and metrics."""
    codec, env = SUITE.codec, SUITE.make_env("train")
    for episode in run():
        observation, reward = env.reset(options={"task_index": episode.task_index})[0], 0.0
        for start, stop, role in episode.turns:
            if role == "observation":
                assert episode.tokens[start:stop] == codec.encode_observation(observation)
            else:
                action = codec.decode_action(episode.tokens[start:stop])
                observation, gain, done, _, info = env.step(action)
                reward += gain
        assert done
        assert episode.reward == reward
        assert info["metrics"].items() <= episode.metrics.items()


def test_measured_metrics() -> None:
    """Counted by hand from the tokens."""
    entry = SHAPE.num_layers * 2 * SHAPE.num_kv_heads * SHAPE.head_dim * 4 + SHAPE.pointer_dim * 4
    for episode in run():
        metrics = episode.metrics
        assert metrics["tokens"] == len(episode.tokens)
        assert metrics["turns"] == sum(role == "action" for _, _, role in episode.turns)
        retained = [min(t, 22) / t for t, acted in enumerate(episode.action_mask) if acted]
        assert metrics["context_retained"] == pytest.approx(np.mean(retained))
        assert metrics["kv_cache_peak_bytes"] == min(len(episode.tokens) - 1, 22) * entry


def test_sampling_follows_the_distribution() -> None:
    """The share of ``next`` as first token equals its probability (3 standard errors)."""
    count = 400
    suite = ToySuite(pages=(1, 1), page_words=(1, 2))
    episodes = generate(
        policy(), suite, "train", [5] * count, lambda i: np.random.default_rng([i, 3])
    )
    first = [e.turns[0][1] for e in episodes]
    tokens = np.array([e.tokens[t] for e, t in zip(episodes, first, strict=True)])
    log_probs = np.array([e.log_probs[t] for e, t in zip(episodes, first, strict=True)])
    for token in (5, 6):
        share = (tokens == token).mean()
        p = float(np.exp(log_probs[tokens == token][0]))
        assert 0.05 < p < 0.95
        assert abs(share - p) < 3 * (p * (1 - p) / count) ** 0.5


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_uniforms_give_allowed_tokens(uniform: float) -> None:
    """The ends of [0, 1) fall on the first and the last allowed token, never beside them."""
    session = policy().session(2, GRAMMAR)
    session.extend([[1, 8, 4], [1, 9, 10, 4]])
    states = np.array([2, 3])
    tokens, log_probs = session.sample(states, np.full(2, uniform))
    end = 0 if uniform == 0.0 else -1
    assert tokens.tolist() == [np.flatnonzero(GRAMMAR.allowed[state])[end] for state in states]
    assert np.isfinite(log_probs).all()


def test_greedy_takes_the_most_likely_token() -> None:
    greedy = generate(policy(), SUITE, "train", [3, 4], None, greedy=True)
    assert greedy == generate(policy(), SUITE, "train", [3, 4], None, greedy=True)
    for episode in greedy:
        for state, log_prob in zip(episode.grammar_state, episode.log_probs, strict=True):
            if state >= 0:
                assert np.exp(log_prob) >= 1.0 / GRAMMAR.allowed[state].sum() - 1e-6


def test_environments_are_reused() -> None:
    """A list of environments is filled once and gives the same episodes as fresh ones."""
    pool: list[Any] = []
    first = run(envs=pool, max_batch=4)
    kept = list(pool)
    assert len(kept) == 4
    assert run(envs=pool, max_batch=4) == first
    assert all(a is b for a, b in zip(pool, kept, strict=True))


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="sampling needs a generator"):
        generate(policy(), SUITE, "train", [1], None)
    with pytest.raises(ValueError, match="got 1 generators for 2"):
        generate(policy(), SUITE, "train", [1, 2], [np.random.default_rng(0)])
    with pytest.raises(ValueError, match="max_batch"):
        run(max_batch=0)


def test_endless_grammar_is_reported() -> None:
    """A grammar that outlives max_action_tokens is a codec fault, not a hang."""
    suite = ToySuite(patient=True)
    suite.codec.max_action_tokens = 1
    with pytest.raises(RuntimeError, match="max_action_tokens=1"):
        generate(policy(), suite, "train", [1], None, greedy=True)
