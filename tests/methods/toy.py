"""A tiny AgentSuite: remember a request through pages of filler, then copy it.

The opening observation names a few symbols. The agent asks for one page after another (``next``)
until a page says ``<now>``, then repeats the symbols (``copy a c b``). The request sits in the sink
tokens and leaves the window after a page or two, so a policy without sink tokens can only guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from methods.base import ContextBudget, Demonstration, Grammar, Split

SPECIAL = ["<pad>", "<task>", "<page>", "<now>", "<you>", "next", "copy", "<end>"]
SYMBOLS = list("abcdefghijkl")
FILLERS = [f"w{i}" for i in range(20)]
VOCABULARY = [*SPECIAL, *SYMBOLS, *FILLERS]
MAX_SYMBOLS = 3
_ID = {word: i for i, word in enumerate(VOCABULARY)}
_CHARSET = "abcdefghijklmnopqrstuvwxyz<>0123456789 "


def _grammar() -> Grammar:
    """``next <end>`` or ``copy`` with one to three symbols and ``<end>``.

    States: 0 start, 1 after "next", 2 + n after "copy" and n symbols, last = final.
    """
    final = 2 + MAX_SYMBOLS + 1
    next_state = np.full((final + 1, len(VOCABULARY)), -1, dtype=np.int64)
    next_state[0, _ID["next"]] = 1
    next_state[0, _ID["copy"]] = 2
    next_state[1, _ID["<end>"]] = final
    for count in range(MAX_SYMBOLS + 1):
        if count < MAX_SYMBOLS:
            next_state[2 + count, [_ID[s] for s in SYMBOLS]] = 3 + count
        if count > 0:
            next_state[2 + count, _ID["<end>"]] = final
    return Grammar(allowed=next_state >= 0, next_state=next_state, start=0, final=final)


class ToyCodec:
    """Observations and actions are strings of vocabulary words."""

    version = "1"
    vocabulary: Sequence[str] = VOCABULARY
    pad_id = _ID["<pad>"]
    max_action_tokens = MAX_SYMBOLS + 2

    def __init__(self) -> None:
        self.grammar = _grammar()

    def encode_observation(self, observation: str) -> list[int]:
        return [*(_ID[word] for word in observation.split()), _ID["<you>"]]

    def encode_action(self, action: str) -> list[int]:
        return [*(_ID[word] for word in action.split()), _ID["<end>"]]

    def decode_action(self, tokens: Sequence[int]) -> str:
        state = self.grammar.start
        for token in tokens:
            state = int(self.grammar.next_state[state, token])
            if state < 0:
                raise ValueError(f"the grammar does not accept {self.decode_text(tokens)!r}")
        if state != self.grammar.final:
            raise ValueError(f"unfinished action {self.decode_text(tokens)!r}")
        return self.decode_text(tokens[:-1])

    def decode_text(self, tokens: Sequence[int]) -> str:
        return " ".join(VOCABULARY[token] for token in tokens)


class ToyEnv(gymnasium.Env[str, str]):
    """Pages of filler between a request and its repetition.

    Reward: 1 for the exact symbols after ``<now>``, else half the share of right positions; 0 for
    copying before ``<now>`` and for running out of turns.
    """

    def __init__(
        self, split: Split, pages: tuple[int, int], page_words: tuple[int, int], patient: bool
    ) -> None:
        self.observation_space = gymnasium.spaces.Text(1000, charset=_CHARSET)
        self.action_space = gymnasium.spaces.Text(100, charset=_CHARSET)
        self._split, self._pages, self._page_words = split, pages, page_words
        self._patient = patient
        self._plan: list[str] = []
        self.request: list[str] = []
        self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        index = int((options or {}).get("task_index", 0))
        rng = np.random.default_rng([index, 0 if self._split == "train" else 1])
        count = 1 + index % MAX_SYMBOLS
        self.request = [str(s) for s in rng.choice(SYMBOLS, size=count, replace=False)]
        number = int(rng.integers(self._pages[0], self._pages[1] + 1))
        self._plan = []
        for page in range(number):
            length = int(rng.integers(self._page_words[0], self._page_words[1] + 1))
            words = rng.choice([*FILLERS, *SYMBOLS[:2]], size=length)
            marker = "<now>" if page == number - 1 else "<page>"
            self._plan.append(" ".join([*map(str, words), marker]))
        self._turn = 0
        return " ".join(["<task>", *self.request]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        ready = self._turn == len(self._plan)
        if not ready and (action == "next" or self._patient):
            self._turn += 1
            return self._plan[self._turn - 1], 0.0, False, False, {}
        given = action.split()[1:] if ready else []
        right = sum(a == b for a, b in zip(given, self.request, strict=False))
        exact = given == self.request
        reward = 1.0 if exact else 0.5 * right / max(len(self.request), len(given), 1)
        metrics = {"joint_success": float(exact), "turns_read": float(self._turn)}
        info = {"metrics": metrics, "tier": f"{len(self.request)} symbols"}
        return "<now>", reward, True, False, info


class ToySuite:
    """AgentSuite of ``ToyEnv``: with the defaults an episode is about 3 to 8 windows of 16 long.

    Args:
        pages: Fewest and most pages of an episode; ``(1, 2)`` makes quick ones.
        page_words: Fewest and most filler words a page.
        window: W of the context budget.
        num_sink_tokens: S of the context budget; 6 covers the longest request.
        num_train: Tasks in the train split.
        num_heldout: Tasks in the held-out split.
        patient: Take an early ``copy`` for ``next``, so that the episodes of an untrained policy
            are as long as the others.
    """

    name = "toy-copy"

    def __init__(
        self,
        *,
        pages: tuple[int, int] = (3, 6),
        page_words: tuple[int, int] = (8, 18),
        window: int = 16,
        num_sink_tokens: int = 6,
        num_train: int = 512,
        num_heldout: int = 64,
        patient: bool = False,
    ) -> None:
        self.codec = ToyCodec()
        self.context = ContextBudget(window=window, num_sink_tokens=num_sink_tokens)
        self._pages, self._page_words, self._patient = pages, page_words, patient
        self._sizes = {"train": num_train, "heldout": num_heldout}
        key = f"{pages}{page_words}{window}{num_sink_tokens}{num_train}{num_heldout}{patient}"
        self.fingerprint = hashlib.sha256(key.encode()).hexdigest()

    def num_tasks(self, split: Split) -> int:
        return self._sizes[split]

    def make_env(self, split: Split) -> ToyEnv:
        return ToyEnv(split, self._pages, self._page_words, self._patient)

    def demonstration(self, index: int, *, noisy: bool, seed: int) -> Demonstration:
        """Read every page, copy the request; the noisy expert gets a symbol wrong 30 % of the time."""
        rng = np.random.default_rng([index, seed, int(noisy)])
        env = self.make_env("train")
        observation, _ = env.reset(options={"task_index": index})
        demo = Demonstration(tokens=[], action_mask=[], train_mask=[], grammar_state=[])
        done = False
        while not done:
            self._append(demo, self.codec.encode_observation(observation), is_action=False)
            symbols = list(env.request)
            if noisy:
                symbols = [str(rng.choice(SYMBOLS)) if rng.random() < 0.3 else s for s in symbols]
            words = ["copy", *symbols] if "<now>" in observation else ["next"]
            action = " ".join(words)
            self._append(demo, self.codec.encode_action(action), is_action=True)
            observation, _, done, _, _ = env.step(action)
        return demo

    def _append(self, demo: Demonstration, tokens: list[int], *, is_action: bool) -> None:
        state = self.codec.grammar.start
        for token in tokens:
            demo.tokens.append(token)
            demo.action_mask.append(is_action)
            demo.train_mask.append(is_action)
            demo.grammar_state.append(state if is_action else -1)
            if is_action:
                state = int(self.codec.grammar.next_state[state, token])
