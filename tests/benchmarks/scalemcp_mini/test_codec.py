"""Codec: round trips, grammar, what fits in the sinks and the window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scalemcp_mini import actions
from benchmarks.scalemcp_mini.codec import (
    AGENT,
    VOCABULARY,
    context_budget,
    shared_codec,
)
from benchmarks.scalemcp_mini.experts import FieldExpert
from benchmarks.scalemcp_mini.knobs import Difficulty
from benchmarks.scalemcp_mini.suite import ScaleMCPSuite
from benchmarks.scalemcp_mini.words import CODES, METRICS, PREFIXES, SUFFIXES, YEARS

CODEC = shared_codec()
_handles = st.tuples(st.sampled_from(CODES), st.sampled_from(CODES)).map("-".join)
_queries = st.tuples(
    st.sampled_from(PREFIXES), st.sampled_from(SUFFIXES), st.sampled_from(METRICS)
).map(" ".join)
_actions = st.one_of(
    _queries.map(actions.search),
    st.tuples(_handles, st.sampled_from(YEARS)).map(lambda a: actions.call(*a)),
    _handles.map(actions.ask_user),
    st.lists(st.integers(0, 9999), max_size=5).map(actions.answer),
)


@given(_actions)
def test_action_to_tokens_and_back(action: dict[str, Any]) -> None:
    tokens = CODEC.encode_action(action)
    assert len(tokens) <= CODEC.max_action_tokens
    assert CODEC.decode_action(tokens) == action
    assert actions.action_space().contains(action)


@given(st.randoms(use_true_random=False))
def test_tokens_to_action_and_back(rng: Any) -> None:
    grammar, state, tokens = CODEC.grammar, CODEC.grammar.start, []
    while state != grammar.final:
        token = int(rng.choice(np.flatnonzero(grammar.allowed[state])))
        tokens.append(token)
        state = int(grammar.next_state[state, token])
    assert CODEC.encode_action(CODEC.decode_action(tokens)) == tokens


def test_grammar_is_well_formed() -> None:
    grammar = CODEC.grammar
    assert grammar.allowed.shape == grammar.next_state.shape
    assert grammar.allowed.shape[1] == len(VOCABULARY) == len(set(VOCABULARY))
    assert (grammar.allowed == (grammar.next_state >= 0)).all()
    assert not grammar.allowed[grammar.final].any()
    others = [g for g in range(len(grammar.allowed)) if g != grammar.final]
    assert grammar.allowed[others].any(axis=1).all()
    assert set(grammar.next_state[grammar.allowed]) | {grammar.start} == set(
        range(len(grammar.allowed))
    )


@pytest.mark.parametrize(
    "text",
    ["", "search", "search acme bank revenue", "call 01 02 ;", "answer 01 ;", "ask 01 02 2020 ;",
     "answer 01 01 01 01 01 01 01 01 01 01 01 01 ;", "answer ; ;", "page ;",
     "search bank acme revenue ;"],
)  # fmt: skip
def test_a_sentence_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="action"):
        CODEC.decode_action([VOCABULARY.index(word) for word in text.split()])


def test_an_action_that_cannot_be_written_is_refused() -> None:
    for action in (actions.search("no such company"), actions.call("abc", 2020)):
        with pytest.raises(ValueError, match="cannot continue"):
            CODEC.encode_action(action)


def test_every_request_fits_the_sink_tokens_and_every_page_the_window() -> None:
    suite = ScaleMCPSuite()
    env = suite.make_env("heldout")
    longest_request = longest_page = 0
    for index in range(150):
        expert = FieldExpert()
        observation, _ = env.reset(options={"task_index": index})
        request = CODEC.encode_observation(observation)
        assert CODEC.decode_text(request) == f"{observation['text']} {AGENT}"
        longest_request = max(longest_request, len(request))
        over = False
        while not over:
            action = expert.act(observation)
            observation, _, terminated, truncated, _ = env.step(action)
            tokens = CODEC.encode_observation(observation)
            assert VOCABULARY.index("<unknown>") not in tokens
            if observation["text"].startswith("page"):
                longest_page = max(longest_page, len(tokens))
            over = terminated or truncated
    assert longest_request == suite.context.num_sink_tokens
    # the first handle code of `call C C YEAR ;` is predicted at `call`, the second one later
    assert longest_page + 2 <= suite.context.window


def test_the_window_grows_with_the_page() -> None:
    small, large = context_budget(Difficulty()), context_budget(Difficulty(page_size=10))
    assert small.window == 48
    assert large.window >= 10 * 6
