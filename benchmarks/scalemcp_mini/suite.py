"""The tasks as a trainer sees them: ``methods.base.AgentSuite``."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict

from benchmarks.scalemcp_mini.codec import VOCABULARY, context_budget, shared_codec
from benchmarks.scalemcp_mini.env import ScaleMCPMiniEnv
from benchmarks.scalemcp_mini.experts import FieldExpert, demonstrate
from benchmarks.scalemcp_mini.knobs import (
    CLEAN_SKILL,
    ENV_VERSION,
    JOINT_REWARD,
    SHARE_REWARD,
    SuiteConfig,
    stable_hash,
)
from benchmarks.scalemcp_mini.tasks import TaskSet
from methods.base import Codec, ContextBudget, Demonstration, Split


class ScaleMCPSuite:
    """An ``AgentSuite`` over one task configuration.

    Methods are handed this object, so its public names are exactly those of ``AgentSuite``; the
    task set, from which gold values can be computed, is private.

    Args:
        config: Decides every task; the default suite if None.

    Attributes:
        name: ``"scalemcp-mini"``.
        fingerprint: SHA-256 over everything that decides tasks, tokens and demonstrations.
        codec: Observations and actions as tokens.
        context: Window and sink tokens that the suite is made for.
    """

    name: str = "scalemcp-mini"

    def __init__(self, config: SuiteConfig | None = None) -> None:
        self._config = config if config is not None else SuiteConfig()
        self._tasks = TaskSet(self._config)
        self.codec: Codec = shared_codec()
        self.context: ContextBudget = context_budget(self._config.difficulty)
        self.fingerprint = fingerprint(self._tasks)
        self._demo_env: ScaleMCPMiniEnv | None = None

    def num_tasks(self, split: Split) -> int:
        """Number of tasks in a split."""
        return self._tasks.num_tasks(split)

    def make_env(self, split: Split) -> ScaleMCPMiniEnv:
        """A fresh, unwrapped environment over a split."""
        return ScaleMCPMiniEnv(split, tasks=self._tasks)

    def demonstration(self, index: int, *, noisy: bool, seed: int) -> Demonstration:
        """A scripted expert's episode on train task ``index``; same arguments, same tokens.

        The clean expert sees what a policy sees and makes no mistake; the noisy one lapses as
        ``SuiteConfig.noisy_skill`` says. Not thread-safe (one environment serves all calls).
        """
        if self._demo_env is None:
            self._demo_env = self.make_env("train")
        skill = self._config.noisy_skill if noisy else CLEAN_SKILL
        rng = random.Random(stable_hash("demonstration", index, noisy, seed))
        return demonstrate(self._demo_env, shared_codec(), FieldExpert(skill, rng), index)


def fingerprint(tasks: TaskSet) -> str:
    """SHA-256 (hex) over knobs, every catalog's tools and values, vocabulary and versions."""
    config = tasks.config
    digest = hashlib.sha256()
    head = {
        "config": asdict(config),
        "env": ENV_VERSION,
        "reward": [JOINT_REWARD, SHARE_REWARD],
        "codec": shared_codec().version,
        "vocabulary": list(VOCABULARY),
        "context": asdict(context_budget(config.difficulty)),
    }
    digest.update(json.dumps(head, sort_keys=True).encode())
    for seed in (*config.train_catalogs, *config.heldout_catalogs):
        catalog = tasks.catalog(seed)
        for (company, metric), tool in catalog.tools.items():
            digest.update(tool.digest.encode())
            digest.update(catalog.value(company, metric, 2020).to_bytes(4, "big"))
    for split in ("train", "heldout"):
        digest.update(repr([tasks.task(split, i) for i in range(64)]).encode())
    return digest.hexdigest()
