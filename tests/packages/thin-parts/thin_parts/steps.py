"""The benchmark ``thin-steps``."""

from __future__ import annotations

from typing import ClassVar

from methods.base import BenchmarkResult, MetricSpec, MetricValue, RunContext


def _share(name: str, direction: str, what: str) -> MetricSpec:
    return MetricSpec(name, "share", direction, 0.0, 1.0, what)


class Steps:
    """How far a walk gets, in episodes that a die decides."""

    name = "thin-steps"
    version = "4"
    default_episodes = 6
    default_updates = 3
    max_episodes = 50
    summary = (("before", "base_success"), ("after", "success"), ("cost", "average_cost"))
    metric_specs: ClassVar = {
        "success": _share("success", "maximize", "Share of episodes that arrive."),
        "base_success": _share("base_success", "maximize", "The same before training."),
        "average_cost": MetricSpec("average_cost", "steps", "minimize", 0.0, None, "Mean steps."),
        "do_nothing_success": _share("do_nothing_success", "neutral", "Floor: without a step."),
        "expert_success": _share("expert_success", "neutral", "Ceiling: by the shortest way."),
    }

    def data_fingerprint(self) -> str:
        """Of the die."""
        return "5" * 64

    def run(self, method, context: RunContext) -> BenchmarkResult:
        """Throw the die once an episode."""
        walk = method.run_agent(None, context)
        reach = min(1.0, 0.2 + sum(walk))
        draws = context.seeds.numpy("episodes").random(context.episodes)
        arrived = [float(draw < reach) for draw in draws]
        before = [float(draw < 0.2) for draw in draws]
        count = context.episodes
        return BenchmarkResult(
            metrics={
                "success": MetricValue(sum(arrived) / count, count),
                "base_success": MetricValue(sum(before) / count, count),
                "average_cost": MetricValue(float(len(walk)), count),
                "do_nothing_success": MetricValue(0.0, count),
                "expert_success": MetricValue(1.0, count),
            },
            samples={"success": arrived, "base_success": before},
            history=[{"update": float(i), "reward": x} for i, x in enumerate(walk)],
            trajectories=[
                {
                    "task_index": 0,
                    "tier": "only",
                    "reward": arrived[0],
                    "turns": [
                        {"role": "observation", "text": "go", "tokens": [0, 1], "reward": 0.0},
                        {"role": "action", "text": "step", "tokens": [1, 2], "reward": arrived[0]},
                    ],
                }
            ],
        )


BENCHMARK = Steps()
