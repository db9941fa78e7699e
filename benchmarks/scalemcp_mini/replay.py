"""Scores of evaluated episodes, by replaying what the policy wrote.

A method hands over episodes with rewards and metrics in them; none of these is believed. Tasks are
deterministic, so the actions of an episode decide its observations and its scores: they are played
again in an environment of the benchmark's own, and the scores are those of this replay.
"""

from __future__ import annotations

import itertools
import math
import numbers
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benchmarks.scalemcp_mini.codec import ScaleMCPCodec, shared_codec
from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv
from methods.base import Episode

MEASURED: Final = {"context_retained": 1.0, "kv_cache_peak_bytes": math.inf}
"""What only the rollout can know, and the largest value of each (the smallest is 0)."""


class Replayer:
    """Scores the held-out episodes of one method.

    Args:
        env: A held-out environment that the method never had.
        method: The method's name, for messages.
    """

    def __init__(self, env: ScaleMCPMiniEnv, method: str) -> None:
        self._env = env
        self._method = method
        self._codec: ScaleMCPCodec = shared_codec()

    def check_tasks(self, episodes: Sequence[Episode], count: int, phase: str) -> list[int]:
        """The task indices of an evaluation.

        Args:
            episodes: As the method returned them.
            count: How many were asked for.
            phase: ``"before RL"`` or ``"after RL"``, for messages.

        Raises:
            ValueError: Unless they are ``count`` distinct held-out tasks in ascending order.
        """
        tasks = [self._task_index(episode, phase) for episode in episodes]
        who = f"method {self._method!r} {phase}"
        if len(tasks) != count:
            raise ValueError(
                f"{who}: {len(tasks)} episodes; {count} were asked for; return one for each task"
            )
        for at, (task, following) in enumerate(itertools.pairwise(tasks)):
            if task >= following:
                raise ValueError(
                    f"{who}: episode {at + 1} is of task {following} and follows task {task}; "
                    "return episodes of distinct tasks in ascending order"
                )
        return tasks

    def score(self, episode: Episode, phase: str) -> Episode:
        """The episode with reward, tier and metrics of its replay.

        Of what the method says, the tokens stay, and of its metrics ``MEASURED``. ``tokens`` and
        ``turns`` are counted here.

        Args:
            episode: Tokens and turns as sampled. Turns are an observation, an action, and so on by
                turns; together they are all tokens, and the last action ends the episode.
            phase: ``"before RL"`` or ``"after RL"``, for messages.

        Raises:
            ValueError: If the environment shows other observations than the episode holds, an
                action cannot be decoded, or the episode ends elsewhere than with its last action.
        """
        task = self._task_index(episode, phase)
        turns = self._turns(episode, task, phase)
        observation, _ = self._env.reset(options={"task_index": task})
        reward, over = 0.0, False
        info: dict[str, object] = {}
        for number, (start, stop, role) in enumerate(turns):
            tokens = list(episode.tokens[start:stop])
            if over:
                raise self._error(
                    phase, task, number, "the episode was over one turn before; end it there"
                )
            if role == "observation":
                expected = self._codec.encode_observation(observation)
                if tokens != expected:
                    raise self._error(phase, task, number, _difference(tokens, expected))
                continue
            try:
                action = self._codec.decode_action(tokens)
            except (ValueError, TypeError) as error:
                raise self._error(phase, task, number, str(error)) from None
            observation, gained, terminated, truncated, info = self._env.step(action)
            reward += gained
            over = terminated or truncated
        if not over:
            raise self._error(
                phase, task, len(turns) - 1, "the episode goes on after its last action; finish it"
            )
        scores = info["metrics"]
        assert isinstance(scores, dict)
        metrics = scores | self._measured(episode, task, phase)
        metrics |= {"tokens": float(len(episode.tokens)), "turns": len(turns) / 2}
        return replace(
            episode,
            task_index=task,
            turns=turns,
            reward=reward,
            metrics=metrics,
            tier=str(info["tier"]),
        )

    def _task_index(self, episode: Episode, phase: str) -> int:
        given, last = episode.task_index, self._env.num_tasks - 1
        try:
            task = -1 if isinstance(given, bool) else operator.index(given)
        except TypeError:
            task = -1
        if not 0 <= task <= last:
            raise ValueError(
                f"method {self._method!r} {phase}: an episode is of task {given!r}; "
                f"held-out tasks are the integers 0 to {last}"
            )
        return task

    def _turns(self, episode: Episode, task: int, phase: str) -> list[tuple[int, int, str]]:
        """The turns, after a check that they alternate and cover all tokens in order."""
        count = len(episode.turns)
        if count == 0 or count % 2:
            what = f"it has {count} turns; an episode is pairs of one observation and one action"
            raise self._error(phase, task, count, what)
        turns: list[tuple[int, int, str]] = []
        end = 0
        for number, turn in enumerate(episode.turns):
            role = ("observation", "action")[number % 2]
            try:
                start, stop, given = operator.index(turn[0]), operator.index(turn[1]), turn[2]
            except (TypeError, IndexError):
                start, stop, given = -1, -1, ""
            if (start, given) != (end, role) or stop <= end:
                what = f"its span is {turn!r}; expected is ({end}, stop, {role!r}), stop > {end}"
                raise self._error(phase, task, number, what)
            turns.append((start, stop, role))
            end = stop
        if end != len(episode.tokens):
            what = f"it stops at token {end}; the episode has {len(episode.tokens)}"
            raise self._error(phase, task, count - 1, what)
        return turns

    def _measured(self, episode: Episode, task: int, phase: str) -> dict[str, float]:
        """``MEASURED`` as far as the method measured it; NaN stands for not measured."""
        out: dict[str, float] = {}
        for name, upper in MEASURED.items():
            value = episode.metrics.get(name)
            if value is None:
                continue
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not number or value < 0 or value > upper or math.isinf(value):
                raise ValueError(
                    f"method {self._method!r} {phase}, task {task}: {name} is {value!r}; allowed "
                    f"is a finite number from 0 to {upper}, or none"
                )
            out[name] = float(value)
        return out

    def _error(self, phase: str, task: int, turn: int, what: str) -> ValueError:
        return ValueError(
            f"the replay of method {self._method!r} {phase} disagrees at task {task}, turn {turn}: "
            f"{what}"
        )


def _difference(tokens: Sequence[int], expected: Sequence[int]) -> str:
    """Where an observation differs from the environment's."""
    at = next(
        (i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b),
        min(len(tokens), len(expected)),
    )
    got = repr(tokens[at]) if at < len(tokens) else "nothing"
    wanted = repr(expected[at]) if at < len(expected) else "nothing"
    return (
        f"token {at} of the observation is {got}, the environment shows {wanted}; keep what "
        "codec.encode_observation gives"
    )
