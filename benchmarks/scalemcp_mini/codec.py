"""Structured observations and actions <-> token ids, and the grammar of actions.

Word-level: a token is a word of ``words.py``. An observation is its words and then ``<agent>``,
which hands the turn over; an action is written after it and ends with ``;``:

    search PREFIX SUFFIX METRIC ;    call CODE CODE YEAR ;    ask CODE CODE ;
    answer (CODE CODE){0..5} ;
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np

from benchmarks.scalemcp_mini import actions
from benchmarks.scalemcp_mini.actions import Action
from benchmarks.scalemcp_mini.knobs import Difficulty
from benchmarks.scalemcp_mini.words import (
    CODES,
    COUNTERS,
    ERROR_CODES,
    KINDS,
    MAX_VALUES,
    METRICS,
    NOTES,
    PREFIXES,
    SUFFIXES,
    VERBS,
    YEARS,
    code_words,
)
from methods.base import ContextBudget, Grammar

PAD: Final = "<pad>"
UNKNOWN: Final = "<unknown>"
AGENT: Final = "<agent>"
END: Final = ";"
YEAR_WORDS: Final = tuple(map(str, YEARS))
VOCABULARY: Final = tuple(
    dict.fromkeys(
        chain(
            (PAD, UNKNOWN, AGENT, END),
            (VERBS + KINDS + ERROR_CODES + COUNTERS + YEAR_WORDS),
            (METRICS + NOTES + PREFIXES + SUFFIXES + CODES),
        )
    )
)
LONGEST_REQUEST: Final = 1 + 4 * MAX_VALUES + 2 + 1  # need, (#i company metric), #n year, <agent>
WINDOW: Final = 48


def _build_grammar(ids: Mapping[str, int]) -> Grammar:
    """The automaton over VOCABULARY; states are numbered in the order they are made."""
    edges: list[dict[int, int]] = []

    def state() -> int:
        edges.append({})
        return len(edges) - 1

    def path(source: int, slots: Iterable[Sequence[str]], target: int) -> None:
        """From ``source`` through one token of each slot, then ``;`` to ``target``."""
        for words in slots:
            following = state()
            edges[source].update({ids[word]: following for word in words})
            source = following
        edges[source][ids[END]] = target

    start, final = state(), state()
    path(start, (["search"], PREFIXES, SUFFIXES, METRICS), final)
    path(start, (["call"], CODES, CODES, YEAR_WORDS), final)
    path(start, (["ask"], CODES, CODES), final)
    source = state()
    edges[start][ids["answer"]] = source
    edges[source][ids[END]] = final
    for _ in range(MAX_VALUES):
        path(source, (CODES, CODES), final)
        source = len(edges) - 1
    allowed = np.zeros((len(edges), len(ids)), dtype=bool)
    next_state = np.full((len(edges), len(ids)), -1, dtype=np.int64)
    for origin, targets in enumerate(edges):
        for token, target in targets.items():
            allowed[origin, token] = True
            next_state[origin, token] = target
    return Grammar(allowed=allowed, next_state=next_state, start=start, final=final)


class ScaleMCPCodec:
    """The suite's ``methods.base.Codec``.

    Attributes:
        vocabulary: Words; a token id is a position in it.
        grammar: Which tokens may follow while an action is written.
        max_action_tokens: Length of the longest action, its ``;`` included.
    """

    version: str = "1"
    vocabulary: Sequence[str] = VOCABULARY
    pad_id: int = 0
    max_action_tokens: int = 2 + 2 * MAX_VALUES

    def __init__(self) -> None:
        self._ids = {word: i for i, word in enumerate(VOCABULARY)}
        self._unknown, self._agent = self._ids[UNKNOWN], self._ids[AGENT]
        self.grammar: Grammar = _build_grammar(self._ids)
        self._steps = [
            {int(v): int(row[v]) for v in np.flatnonzero(row >= 0)}
            for row in self.grammar.next_state
        ]

    def encode_observation(self, observation: Mapping[str, Any]) -> list[int]:
        """Token ids of an observation's words and ``<agent>``; an unknown word is ``<unknown>``."""
        ids, unknown = self._ids, self._unknown
        tokens = [ids.get(word, unknown) for word in observation["text"].split()]
        tokens.append(self._agent)
        return tokens

    def encode_action(self, action: Action) -> list[int]:
        """Token ids of an action, ``;`` included.

        Raises:
            ValueError: If the action is none that the grammar can write.
        """
        tokens = [self._ids.get(word, self._unknown) for word in self._action_words(action)]
        self.grammar_states(tokens)
        return tokens

    def decode_action(self, tokens: Sequence[int]) -> Action:
        """The structured action of a token sequence.

        Raises:
            ValueError: If the grammar does not accept ``tokens``.
        """
        self.grammar_states(tokens)
        verb, *rest = (VOCABULARY[token] for token in tokens[:-1])
        if verb == "search":
            return actions.search(" ".join(rest))
        if verb == "call":
            return actions.call(f"{rest[0]}-{rest[1]}", int(rest[2]))
        if verb == "ask":
            return actions.ask_user(f"{rest[0]}-{rest[1]}")
        return actions.answer(
            [int(a) * 100 + int(b) for a, b in zip(*[iter(rest)] * 2, strict=True)]
        )

    def decode_text(self, tokens: Sequence[int]) -> str:
        """The words, separated by spaces."""
        return " ".join(VOCABULARY[token] for token in tokens)

    def grammar_states(self, tokens: Sequence[int]) -> list[int]:
        """The grammar state before each token of a whole action.

        Raises:
            ValueError: If the grammar does not accept ``tokens``.
        """
        state, states = self.grammar.start, []
        for position, token in enumerate(tokens):
            states.append(state)
            following = self._steps[state].get(int(token))
            if following is None:
                raise ValueError(
                    f"token {token} at position {position} cannot continue an action "
                    f"(grammar state {state}); allowed there: {self._allowed_words(state)}"
                )
            state = following
        if state != self.grammar.final:
            raise ValueError(f"the action breaks off after {len(tokens)} tokens; it ends with ';'")
        return states

    def _allowed_words(self, state: int) -> str:
        words = [VOCABULARY[token] for token in self._steps[state]]
        return ", ".join(words[:6]) + (", ..." if len(words) > 6 else "") if words else "nothing"

    def _action_words(self, action: Action) -> list[str]:
        verb = actions.verb_of(action)
        if verb == actions.SEARCH:
            return ["search", *actions.query_of(action).split(), END]
        if verb == actions.ANSWER:
            words = [w for value in actions.values_of(action) for w in code_words(value).split()]
            return ["answer", *words, END]
        handle = actions.tool_of(action).split("-")
        if verb == actions.CALL:
            return ["call", *handle, str(actions.year_of(action)), END]
        return ["ask", *handle, END]


@lru_cache(maxsize=1)
def shared_codec() -> ScaleMCPCodec:
    """The codec; it has no mutable state, so one is enough."""
    return ScaleMCPCodec()


def context_budget(difficulty: Difficulty) -> ContextBudget:
    """Sinks that hold the longest request, and a window that holds a page and the call after it.

    A page is ``page``, the counter, up to four values (2 each), k documents of company, metric,
    handle and notes (5 + n), the query (3) and ``<agent>``; the call's year is the fourth token
    after.

    Raises:
        ValueError: If a page does not fit the window.
    """
    page = 4 + difficulty.page_size * (5 + difficulty.notes) + 1 + 2 * (MAX_VALUES - 1) + 1
    window = max(WINDOW, page + 4)
    return ContextBudget(window=window, num_sink_tokens=LONGEST_REQUEST)
