"""The only holder of the gold answer and the gold plan.

The environment tells it what happened and reads scores back after the episode; nothing of it goes
into an observation, and into ``info`` go only scores, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.scalemcp_mini.catalog import Catalog, Pair
from benchmarks.scalemcp_mini.knobs import JOINT_REWARD, SHARE_REWARD
from benchmarks.scalemcp_mini.tasks import Task


class Evaluator:
    """Scores one episode.

    Definitions:
        answer_accuracy: Values that are right at their place in the request, divided by the larger
            of values asked for and values answered; 0 without an answer. It looks at the answer
            alone: a value that was guessed, never obtained by a call, counts when it is right (one
            chance in ``words.VALUE_RANGE`` for each), and earns its part of SHARE_REWARD. That
            values were obtained is what plan_success adds, and joint_success needs both.
        plan_success: 1 if, before the answer, every requested pair was obtained by a successful
            call of its own tool with the requested year, and the answer holds exactly one value for
            each; else 0. Detours cost, but do not break the plan.
        joint_success: 1 if plan_success is 1 and every value is right; else 0.
        reward: JOINT_REWARD * joint_success + SHARE_REWARD * answer_accuracy, in [0, 1].
        right call: A call that names a current or former handle of a requested pair's tool and the
            requested year, whatever it returned.

    Args:
        task: What was asked.
        catalog: Where the values are.
    """

    def __init__(self, task: Task, catalog: Catalog) -> None:
        self._gold = [catalog.value(*pair, task.year) for pair in task.pairs]
        self._wanted = frozenset(task.pairs)
        self._year = task.year
        self._obtained: set[Pair] = set()
        self._answer: tuple[int, ...] | None = None
        self.tool_calls = self.right_calls = self.searches = self.hits = self.user_turns = 0
        self.wanted_searches = 0

    def saw_call(self, pair: Pair | None, year: int, obtained: bool) -> None:
        """A call was made; ``pair`` is what its handle means or meant, None if nothing."""
        self.tool_calls += 1
        right = pair in self._wanted and year == self._year
        self.right_calls += right
        if right and obtained and pair is not None:
            self._obtained.add(pair)

    def saw_search(self, pair: Pair | None, found: bool) -> None:
        """A search was made for exactly ``pair`` (None: for none); ``found``: it was on the page."""
        self.searches += 1
        if pair in self._wanted:
            self.wanted_searches += 1
            self.hits += found

    def saw_question(self) -> None:
        """The user was asked something."""
        self.user_turns += 1

    def saw_answer(self, values: Sequence[int]) -> None:
        """The episode's answer was given."""
        self._answer = tuple(values)

    def metrics(self, turns: int, syncs: int) -> dict[str, float]:
        """Scores of the finished episode, answered or not. Counts stay counts, so that a share
        without an occasion is left undefined by whoever divides, never 1.
        """
        answer = self._answer if self._answer is not None else ()
        right = sum(a == b for a, b in zip(answer, self._gold, strict=False))
        accuracy = right / max(len(answer), len(self._gold))
        plan = len(answer) == len(self._gold) and self._obtained == self._wanted
        joint = plan and right == len(self._gold)
        return {
            "answer_accuracy": accuracy,
            "plan_success": float(plan),
            "joint_success": float(joint),
            "reward": JOINT_REWARD * joint + SHARE_REWARD * accuracy,
            "answered": float(self._answer is not None),
            "values": float(len(self._gold)),
            "tool_calls": float(self.tool_calls),
            "right_tool_calls": float(self.right_calls),
            "searches": float(self.searches),
            "wanted_searches": float(self.wanted_searches),
            "search_hits": float(self.hits),
            "user_turns": float(self.user_turns),
            "cost": float(self.searches + self.tool_calls + self.user_turns),
            "catalog_changes": float(syncs),
            "env_turns": float(turns),
        }
