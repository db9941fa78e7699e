"""The method ``thin-walk``."""

from __future__ import annotations

import json
from dataclasses import dataclass

from methods.base import Interrupted, RunContext
from thin_parts.pace import length


@dataclass(frozen=True)
class Config:
    """How it walks."""

    rate: float = 0.5


@dataclass(frozen=True)
class Walk:
    """A random walk that saves every step."""

    name: str = "thin-walk"
    version: str = "2"
    config: Config = Config()

    def run_agent(self, suite, context: RunContext) -> list[float]:
        """One step an update."""
        state = context.cell_dir / "walk.json"
        walk = json.loads(state.read_text()) if state.exists() else []
        for update in range(len(walk), context.updates):
            if context.should_stop():
                raise Interrupted
            walk.append(
                length(float(context.seeds.numpy("walk", update).random()), self.config.rate)
            )
            temp = state.with_suffix(".new")
            temp.write_text(json.dumps(walk))
            temp.replace(state)
            context.report(
                {
                    "event": "progress",
                    "phase": "rl",
                    "done": update + 1,
                    "total": context.updates,
                    "reward": walk[-1],
                }
            )
        return walk


METHOD = Walk()
