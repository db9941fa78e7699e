"""What each number of the benchmark means, and how it follows from episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from benchmarks.scalemcp_mini.tasks import TIERS
from methods.base import Direction, Episode, MetricSpec, MetricValue

Row = Mapping[str, float]


def _spec(
    name: str, unit: str, direction: Direction, description: str, upper: float | None = None
) -> MetricSpec:
    return MetricSpec(name, unit, direction, 0.0, upper, description)


def _share(name: str, description: str, direction: Direction = "maximize") -> MetricSpec:
    return _spec(name, "share", direction, description, 1.0)


_SPECS: Final = (
    _share(
        "answer_accuracy",
        "Mean over episodes of the values right at their place in the request, divided by the larger "
        "of values asked for and values answered.",
    ),
    _share(
        "plan_success",
        "Share of episodes in which, before the answer, every requested value was obtained by a "
        "successful call of its own tool with the requested year, and the answer holds exactly one "
        "value for each.",
    ),
    _share("joint_success", "Share of episodes with plan_success and every value right."),
    _share(
        "tool_correctness",
        "Mean over episodes with a tool call of the share of calls that named a current or former "
        "handle of a requested tool and the requested year.",
    ),
    _spec(
        "average_cost",
        "calls",
        "minimize",
        "Mean over episodes of searches plus tool calls plus questions to the user.",
    ),
    _share(
        "recall_at_k",
        "Mean over episodes that searched for a requested (company, metric) of the share of those "
        "searches whose page of k documents held that tool.",
    ),
    _spec(
        "average_tokens",
        "tokens",
        "neutral",
        "Mean tokens of an episode, observations and actions.",
    ),
    _share(
        "context_retained",
        "Mean over episodes of visible positions divided by all earlier positions, over the tokens "
        "that the policy wrote.",
        "neutral",
    ),
    _spec(
        "kv_cache_peak_bytes",
        "bytes",
        "minimize",
        "Largest key-value cache that one episode of the evaluation needed.",
    ),
    _spec("policy_updates", "updates", "neutral", "Policy updates made by RL."),
    _share("base_joint_success", "joint_success of the base policy, before RL, on the same tasks."),
    _share(
        "base_answer_accuracy", "answer_accuracy of the base policy, before RL, on the same tasks."
    ),
    *(
        _share(
            f"joint_success_{tier}", f"joint_success of the tasks of {tier[5:]} requested value(s)."
        )
        for tier in TIERS
    ),
    _share(
        "do_nothing_joint_success",
        "Floor: joint_success, on the same tasks, of an agent that answers nothing at once.",
        "neutral",
    ),
    _share(
        "random_joint_success",
        "Floor: joint_success, on the same tasks, of an agent that writes random valid actions.",
        "neutral",
    ),
    _share(
        "expert_joint_success",
        "Ceiling: joint_success, on the same tasks, of a scripted expert with full knowledge.",
        "neutral",
    ),
    _spec(
        "zero_variance_groups",
        "groups",
        "neutral",
        "GRPO groups of the whole run whose rewards were all equal, so that only the KL term pulled.",
    ),
    _spec(
        "invalid_rewards",
        "episodes",
        "minimize",
        "Training episodes whose reward was not finite and was left out.",
    ),
    _spec(
        "max_log_ratio_gap",
        "nats",
        "neutral",
        "Largest difference between a token's log-probability as sampled and as recomputed for "
        "training before any update; differs between attention kernels.",
    ),
)
METRIC_SPECS: Final[dict[str, MetricSpec]] = {spec.name: spec for spec in _SPECS}

SUMMARY: Final = (
    ("joint success before RL", "base_joint_success"),
    ("joint success after RL", "joint_success"),
    ("answer accuracy after RL", "answer_accuracy"),
    ("floor: do nothing", "do_nothing_joint_success"),
    ("floor: random valid actions", "random_joint_success"),
    ("ceiling: scripted expert", "expert_joint_success"),
    ("cost (calls and questions)", "average_cost"),
    ("tokens an episode", "average_tokens"),
    ("context retained", "context_retained"),
    ("KV cache peak", "kv_cache_peak_bytes"),
)

COUNTERS: Final = ("zero_variance_groups", "invalid_rewards", "max_log_ratio_gap")


def mean(values: Iterable[float], undefined: str) -> MetricValue:
    """Mean with its standard error (sample std / sqrt(n)); NaN marks a value without occasion.

    Args:
        values: One number an episode.
        undefined: Why the mean is None if no number is left. Nothing to average is never 1.0 or 0.
    """
    kept = [v for v in values if not math.isnan(v)]
    n = len(kept)
    if n == 0:
        return MetricValue(None, 0, reason=undefined)
    average = math.fsum(kept) / n
    if n == 1:
        return MetricValue(average, 1)
    variance = math.fsum((v - average) ** 2 for v in kept) / (n - 1)
    return MetricValue(average, n, math.sqrt(variance / n))


def ratio(row: Row, part: str, whole: str) -> float:
    """``row[part] / row[whole]``, NaN where there was no occasion."""
    return row[part] / row[whole] if row.get(whole) else math.nan


COLUMNS: Final[dict[str, Callable[[Row], float]]] = {
    "answer_accuracy": lambda row: row["answer_accuracy"],
    "plan_success": lambda row: row["plan_success"],
    "joint_success": lambda row: row["joint_success"],
    "tool_correctness": lambda row: ratio(row, "right_tool_calls", "tool_calls"),
    "average_cost": lambda row: row["cost"],
    "recall_at_k": lambda row: ratio(row, "search_hits", "wanted_searches"),
    "average_tokens": lambda row: row.get("tokens", math.nan),
    "context_retained": lambda row: row.get("context_retained", math.nan),
    "kv_cache_peak_bytes": lambda row: row.get("kv_cache_peak_bytes", math.nan),
}
"""Per-episode numbers, by the name of the metric that they make up."""

_UNDEFINED: Final = {
    "tool_correctness": "no episode called a tool",
    "recall_at_k": "no episode searched for a requested tool",
}


def columns(episodes: Sequence[Episode]) -> dict[str, list[float]]:
    """Per-episode numbers in task order; NaN where an episode gave no occasion."""
    return {name: [get(e.metrics) for e in episodes] for name, get in COLUMNS.items()}


def episode_metrics(
    episodes: Sequence[Episode], table: Mapping[str, Sequence[float]]
) -> dict[str, MetricValue]:
    """The metrics that follow from evaluated episodes and their ``columns``."""
    out = {
        name: mean(table[name], _UNDEFINED.get(name, "the rollout did not measure it"))
        for name in COLUMNS
        if name != "kv_cache_peak_bytes"
    }
    peaks = [v for v in table["kv_cache_peak_bytes"] if not math.isnan(v)]
    out["kv_cache_peak_bytes"] = (
        MetricValue(max(peaks), len(peaks))
        if peaks
        else MetricValue(None, 0, reason="the rollout did not measure it")
    )
    for tier in TIERS:
        successes = [
            s for e, s in zip(episodes, table["joint_success"], strict=True) if e.tier == tier
        ]
        out[f"joint_success_{tier}"] = mean(successes, f"no evaluated task is of {tier}")
    return out


def counter_metrics(counters: Mapping[str, float], updates: int) -> dict[str, MetricValue]:
    """The metrics that the trainer counted over the whole run."""
    out = {"policy_updates": MetricValue(float(updates), 1)}
    for name in COUNTERS:
        if name in counters:
            out[name] = MetricValue(float(counters[name]), 1)
        else:
            out[name] = MetricValue(None, 0, reason="the method made no update that counts it")
    return out
