"""What every method does with an agent suite: base, evaluation, RL, evaluation.

The method pages import this module, and listing methods must stay fast: torch and all that needs
it are imported when a cell runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from methods.base import AgentOutcome, Episode, Interrupted, Resources
from methods.config import AttentionConfig, MethodConfig
from methods.team import SOLO, Team, run_team

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from methods.base import AgentSuite, RunContext
    from methods.policy import SmallPolicy

# Episodes sampled side by side in an evaluation: part of the recipe, because the width of a matrix
# product decides how it rounds.
EVALUATION_BATCH = 120


@dataclass(frozen=True)
class AgentMethod:
    """A recipe that trains a small policy by imitation, then by GRPO.

    Args:
        name: Name on the command line.
        version: Raised when the recipe's results change.
        config: Everything that distinguishes it from its siblings.
    """

    name: str
    version: str
    config: MethodConfig

    @property
    def resources(self) -> Resources:
        """A core for each process that a cell's work is split over."""
        return Resources(cpus=self.config.processes)

    def run_agent(self, suite: AgentSuite, context: RunContext) -> AgentOutcome:
        """Build or load the base policy, evaluate it, train it by GRPO, evaluate it again.

        Both evaluations sample the same held-out tasks with the same generators.

        Args:
            suite: Tasks and codec.
            context: Budget, folders, seeds, progress, stop signal.

        Returns:
            Episodes before and after, the learning curve, counters.

        Raises:
            ValueError: If more held-out episodes are asked for than there are tasks.
            Interrupted: If asked to stop; the same call continues where it stopped.
            CheckpointError: If saved state is there and none of it can be used.
        """
        # Loaded here and not after the fork: once, and shared.
        from methods import supervised, trainer  # noqa: F401

        tasks = heldout_tasks(suite, context)  # refuses a bad budget before anything is started
        return run_team(
            self.config.processes,
            lambda team: self._run_member(suite, member_context(context, team), tasks, team),
            context.report,
        )

    def _run_member(
        self, suite: AgentSuite, context: RunContext, tasks: Sequence[int], team: Team
    ) -> AgentOutcome:
        """What each process of the team does; all end with the same outcome."""
        from methods.supervised import ensure_base
        from methods.trainer import train

        config = self.config
        weights = ensure_base(
            suite,
            config,
            context,
            lambda g: make_policy(suite, config, config.base_attention, g),
            team,
        )
        policy = make_policy(suite, config, config.attention)
        reference = make_policy(suite, config, config.attention)
        for model in (policy, reference):
            load_base(model, weights)
        reference.requires_grad_(False)
        spec_hash = self.spec_hash(suite, context)
        before = _evaluate_once(policy, suite, context, tasks, spec_hash, team)
        result = train(policy, reference, suite, config.grpo, context, spec_hash, team)
        after = evaluate(policy, suite, context, tasks, "evaluate", team)
        return AgentOutcome(before, after, result.history, result.updates, result.counters)

    def spec_hash(self, suite: AgentSuite, context: RunContext) -> str:
        """Digest of everything that saved state must agree on to be continued."""
        from methods.checkpoint import canonical_digest
        from methods.supervised import base_recipe

        return canonical_digest(
            {
                "method": {"name": self.name, "version": self.version},
                "config": dataclasses.asdict(self.config),
                "base": base_recipe(suite, self.config),
                "seed": context.seed,
                "episodes": context.episodes,
                "updates": context.updates,
            }
        )


def member_context(context: RunContext, team: Team) -> RunContext:
    """The context of one process: rank 0 alone reports and hears the wish to stop."""
    if team.rank == 0:
        return context
    return dataclasses.replace(context, report=lambda event: None, should_stop=lambda: False)


def heldout_tasks(suite: AgentSuite, context: RunContext) -> list[int]:
    """The held-out tasks of a cell, distinct and ascending.

    Raises:
        ValueError: If the split has fewer tasks than ``context.episodes``.
    """
    available = suite.num_tasks("heldout")
    if not 0 < context.episodes <= available:
        raise ValueError(
            f"cannot evaluate {context.episodes} distinct held-out episodes: {suite.name} has "
            f"{available} held-out tasks; ask for 1 to {available} (--episodes)"
        )
    drawn = context.seeds.numpy("evaluation-tasks").choice(
        available, size=context.episodes, replace=False
    )
    return sorted(int(task) for task in drawn)


def make_policy(
    suite: AgentSuite,
    config: MethodConfig,
    attention: AttentionConfig,
    generator: torch.Generator | None = None,
) -> SmallPolicy:
    """A policy for the suite's vocabulary and context budget.

    Args:
        suite: Vocabulary, S and W.
        config: Shape.
        attention: How it attends.
        generator: Initial weights; None where weights are loaded anyway.
    """
    from methods.policy import SmallPolicy

    return SmallPolicy(
        config.shape, attention, suite.context, len(suite.codec.vocabulary), generator
    )


def load_base(policy: SmallPolicy, weights: dict[str, torch.Tensor]) -> None:
    """Load a base's weights, dropping the sink logits that the policy's attention does not use."""
    from methods.policy import convert_state

    policy.load_state_dict(convert_state(weights, policy.attention))


def evaluate(
    policy: SmallPolicy,
    suite: AgentSuite,
    context: RunContext,
    tasks: Sequence[int],
    phase: str,
    team: Team = SOLO,
) -> list[Episode]:
    """One sampled episode on each held-out task, in order.

    An episode's generator depends on (seed, task) alone, so two policies face the same draws.

    Args:
        policy: What to evaluate.
        suite: Where the tasks are.
        context: Seeds, progress, stop signal.
        tasks: Held-out task indices.
        phase: Name of the phase in progress events.
        team: The processes that share the tasks; all get all episodes.

    Raises:
        Interrupted: If asked to stop between batches.
    """
    from methods.rollout import generate

    episodes: list[Episode] = []
    for start in range(0, len(tasks), EVALUATION_BATCH):
        if team.agree(context.should_stop()):
            raise Interrupted(f"stopped in phase {phase} after {start} of {len(tasks)} episodes")
        chunk = list(tasks[start : start + EVALUATION_BATCH])
        mine = team.share_of(chunk)
        generators = [context.seeds.numpy("evaluation-episode", task) for task in mine]
        played = generate(policy, suite, "heldout", mine, generators) if mine else []
        everyones = team.gather([vars(episode) for episode in played])
        episodes += map(_episode, team.interleave(everyones))
        context.report(
            {
                "event": "progress",
                "phase": phase,
                "done": len(episodes),
                "total": len(tasks),
                "reward": sum(e.reward for e in episodes) / len(episodes),
            }
        )
    return episodes


def _episode(fields: dict[str, Any]) -> Episode:
    """An episode that went through JSON."""
    return Episode(**{**fields, "turns": [tuple(turn) for turn in fields["turns"]]})


def _evaluate_once(
    policy: SmallPolicy,
    suite: AgentSuite,
    context: RunContext,
    tasks: Sequence[int],
    spec_hash: str,
    team: Team,
) -> list[Episode]:
    """The base's evaluation, from the cell's folder when a run of the same spec left it there."""
    from methods.checkpoint import canonical_digest, write_atomic

    path = context.cell_dir / "base-episodes.json"
    saved = _read_episodes(path, spec_hash) if team.rank == 0 else None
    shared = team.agree(None if saved is None else [vars(episode) for episode in saved])
    if shared is not None:
        return list(map(_episode, shared))
    episodes = evaluate(policy, suite, context, tasks, "evaluate-base", team)
    if team.rank:
        return episodes
    body: dict[str, Any] = {"spec_hash": spec_hash, "episodes": [vars(e) for e in episodes]}
    try:
        body["sha256"] = canonical_digest(body)
    except ValueError:  # a NaN metric has no strict JSON: evaluate again instead of altering it
        return episodes
    write_atomic(path, json.dumps(body, allow_nan=False).encode())
    return episodes


def _read_episodes(path: Path, spec_hash: str) -> list[Episode] | None:
    from methods.checkpoint import canonical_digest

    try:
        body = json.loads(path.read_bytes())
        claimed = body.pop("sha256")
        if body["spec_hash"] != spec_hash or claimed != canonical_digest(body):
            return None
        return [_episode(fields) for fields in body["episodes"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a cache: whatever is wrong with it, evaluating again is right
