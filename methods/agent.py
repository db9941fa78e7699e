"""What every method does with an agent suite: base, evaluation, RL, evaluation.

The method pages import this module, and listing methods must stay fast: torch and all that needs
it are imported when a cell runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from methods.base import AgentOutcome, Episode, Interrupted
from methods.config import AttentionConfig, MethodConfig

if TYPE_CHECKING:
    import torch

    from methods.base import AgentSuite, RunContext
    from methods.policy import SmallPolicy

# Episodes sampled side by side in an evaluation: part of the recipe, because the width of a matrix
# product decides how it rounds.
EVALUATION_BATCH = 40


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
        from methods.supervised import ensure_base
        from methods.trainer import train

        tasks = heldout_tasks(suite, context)
        config = self.config
        weights = ensure_base(
            suite, config, context, lambda g: make_policy(suite, config, config.base_attention, g)
        )
        policy = make_policy(suite, config, config.attention)
        reference = make_policy(suite, config, config.attention)
        for model in (policy, reference):
            load_base(model, weights)
        reference.requires_grad_(False)
        spec_hash = self.spec_hash(suite, context)
        before = _evaluate_once(
            policy, suite, context, tasks, context.cell_dir / "base-episodes.json", spec_hash
        )
        result = train(policy, reference, suite, config.grpo, context, spec_hash)
        after = evaluate(policy, suite, context, tasks, "evaluate")
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
    policy: SmallPolicy, suite: AgentSuite, context: RunContext, tasks: Sequence[int], phase: str
) -> list[Episode]:
    """One sampled episode on each held-out task, in order.

    An episode's generator depends on (seed, task) alone, so two policies face the same draws.

    Args:
        policy: What to evaluate.
        suite: Where the tasks are.
        context: Seeds, progress, stop signal.
        tasks: Held-out task indices.
        phase: Name of the phase in progress events.

    Raises:
        Interrupted: If asked to stop between batches.
    """
    from methods.rollout import generate

    episodes: list[Episode] = []
    for start in range(0, len(tasks), EVALUATION_BATCH):
        if context.should_stop():
            raise Interrupted(f"stopped in phase {phase} after {start} of {len(tasks)} episodes")
        chunk = list(tasks[start : start + EVALUATION_BATCH])
        generators = [context.seeds.numpy("evaluation-episode", task) for task in chunk]
        episodes += generate(policy, suite, "heldout", chunk, generators)
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


def _evaluate_once(
    policy: SmallPolicy,
    suite: AgentSuite,
    context: RunContext,
    tasks: Sequence[int],
    path: Path,
    spec_hash: str,
) -> list[Episode]:
    """The base's evaluation, from ``path`` when a run of the same spec left it there."""
    from methods.checkpoint import canonical_digest, write_atomic

    saved = _read_episodes(path, spec_hash)
    if saved is not None:
        return saved
    episodes = evaluate(policy, suite, context, tasks, "evaluate-base")
    body: dict[str, Any] = {
        "spec_hash": spec_hash,
        "episodes": [dataclasses.asdict(episode) for episode in episodes],
    }
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
        return [
            Episode(**{**fields, "turns": [tuple(turn) for turn in fields["turns"]]})
            for fields in body["episodes"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a cache: whatever is wrong with it, evaluating again is right
