"""Scripted agents: the experts that a base policy imitates, the floors and the ceiling."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np

from benchmarks.scalemcp_mini import actions
from benchmarks.scalemcp_mini.actions import Action
from benchmarks.scalemcp_mini.codec import ScaleMCPCodec
from benchmarks.scalemcp_mini.env import Observation, ScaleMCPMiniEnv
from benchmarks.scalemcp_mini.knobs import CLEAN_SKILL, Skill
from benchmarks.scalemcp_mini.words import COUNTERS, YEARS
from methods.base import Demonstration


class Agent(Protocol):
    """Anything that plays: it sees observations only."""

    def act(self, observation: Observation) -> Action:
        """The next action."""
        ...


@dataclass
class FieldExpert:
    """Plays from the observations alone, as a policy must, with the given skill.

    Args:
        skill: What it does right, and how often.
        rng: Draws its lapses.
    """

    skill: Skill = CLEAN_SKILL
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    _items: list[str] = field(default_factory=list)
    _year: int = 0
    _at: int = -1
    _ledger: list[int] = field(default_factory=list)

    def act(self, observation: Observation) -> Action:
        """The next action for the observation just received."""
        words = observation["text"].split()
        if words[0] == "need":
            self._items = [" ".join(words[i : i + 3]) for i in range(2, len(words) - 2, 4)]
            self._year, self._at, self._ledger = int(words[-1]), -1, []
            return self._next_item()
        self._ledger = _ledger_of(words)
        if words[0] == "page":
            return self._read_page(words)
        if words[0] == "ok":
            return self._next_item()
        if words[0] == "granted":
            return actions.call("-".join(words[1:3]), self._year)
        return self._after_error(words[1], "-".join(words[2:4]))

    def _after_error(self, code: str, handle: str) -> Action:
        if code == "consent" and self._succeeds(self.skill.asks_consent):
            return actions.ask_user(handle)
        if code == "stale" and self._succeeds(self.skill.searches_again):
            return actions.search(self._items[self._at])
        return self._lapse()

    def _succeeds(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _next_item(self) -> Action:
        self._at += 1
        while self._at < len(self._items) and self._succeeds(self.skill.skips):
            self._at += 1
        if self._at >= len(self._items):
            return actions.answer(self._ledger)
        return actions.search(self._items[self._at])

    def _lapse(self) -> Action:
        if self._succeeds(self.skill.gives_up):
            return actions.answer(self._ledger)
        return self._next_item()

    def _read_page(self, words: list[str]) -> Action:
        """Call the tool that was searched; words are ``page``, ledger, documents, query (3)."""
        body = words[2 + 2 * len(self._ledger) : -3]
        size = _document_size(body)
        documents = [body[i : i + size] for i in range(0, len(body), size)] if size else []
        named = {" ".join(d[:3]): f"{d[3]}-{d[4]}" for d in documents}
        handle = named.get(self._items[self._at])
        if handle is None:
            if self._succeeds(self.skill.searches_again):
                return actions.search(self._items[self._at])
            return self._lapse()
        year = self._year
        if self._succeeds(self.skill.wrong_argument):
            others = [name for name in named.values() if name != handle]
            if others and self._succeeds(0.5):
                handle = others[int(self.rng.random() * len(others))]
            else:
                other_years = [y for y in YEARS if y != year]
                year = other_years[int(self.rng.random() * len(other_years))]
        return actions.call(handle, year)


def _ledger_of(words: list[str]) -> list[int]:
    start = next(i for i, word in enumerate(words) if word in COUNTERS) + 1
    codes = list(map(int, takewhile(str.isdigit, words[start:])))
    return [codes[i] * 100 + codes[i + 1] for i in range(0, len(codes), 2)]


def _document_size(body: list[str]) -> int:
    """Words a document: codes stand 4th and 5th in each, so the next code is one document on."""
    codes = [i for i, word in enumerate(body) if word.isdigit()]
    return codes[2] - codes[0] if len(codes) > 2 else len(body)


@dataclass
class OracleExpert:
    """Knows the world: asks for each needed consent first and calls by handle, never searching.

    Its score is the ceiling; it must be 1.0. It reads the environment's private state, which no
    policy can.

    Args:
        env: The environment it plays in.
    """

    env: ScaleMCPMiniEnv

    def act(self, observation: Observation) -> Action:
        """The next action."""
        del observation
        task, state = self.env._task, self.env._state
        missing = [pair for pair in task.pairs if pair not in state.ledger]
        if not missing:
            return actions.answer([state.ledger[pair] for pair in task.pairs])
        pair = missing[0]
        server = self.env._servers.get(pair[0]) or self.env._catalog.server(pair[0])
        handle = server.tools[pair[1]].name
        if self.env._of(pair).needs_consent and pair not in state.consents:
            return actions.ask_user(handle)
        return actions.call(handle, task.year)


class DoNothing:
    """Answers with nothing at once: a floor."""

    def act(self, observation: Observation) -> Action:
        """The empty answer."""
        del observation
        return actions.answer(())


@dataclass
class RandomAgent:
    """Writes each token uniformly among those that the grammar allows: a floor.

    Args:
        codec: Has the grammar.
        rng: Draws the tokens.
    """

    codec: ScaleMCPCodec
    rng: random.Random

    def act(self, observation: Observation) -> Action:
        """A random valid action."""
        del observation
        grammar, tokens = self.codec.grammar, list[int]()
        state = grammar.start
        while state != grammar.final:
            options = np.flatnonzero(grammar.allowed[state])
            tokens.append(int(options[int(self.rng.random() * len(options))]))
            state = int(grammar.next_state[state, tokens[-1]])
        return self.codec.decode_action(tokens)


def play(env: ScaleMCPMiniEnv, agent: Agent, index: int) -> dict[str, float]:
    """Play task ``index`` to its end; returns the terminal metrics."""
    observation, _ = env.reset(options={"task_index": index})
    while True:
        observation, _, terminated, truncated, info = env.step(agent.act(observation))
        if terminated or truncated:
            return dict(info["metrics"])


def demonstrate(
    env: ScaleMCPMiniEnv, codec: ScaleMCPCodec, agent: Agent, index: int
) -> Demonstration:
    """Play task ``index`` and keep the tokens; every agent token is worth imitating.

    The last observation (``done``) is left out: no action follows it.
    """
    observation, _ = env.reset(options={"task_index": index})
    tokens: list[int] = []
    mask: list[bool] = []
    states: list[int] = []
    over = False
    while not over:
        seen = codec.encode_observation(observation)
        action = agent.act(observation)
        written = codec.encode_action(action)
        tokens += seen + written
        mask += [False] * len(seen) + [True] * len(written)
        states += [-1] * len(seen) + codec.grammar_states(written)
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    return Demonstration(tokens, mask, list(mask), states)
