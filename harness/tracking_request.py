"""What a mirror gives to MLflow, as one JSON file in the run's folder.

The request is complete in itself, so that a run can be mirrored later without the code, the metrics
file or the MLflow store of the day it ran.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from harness import strict_json
from harness.atomic import atomic_write
from harness.tracking_names import encode_name, mlflow_keys

REQUEST_NAME = "mirror.json"

_MAX_PARAM = 6000
_MAX_TAG = 5000


def _flat(prefix: str, value: Any) -> dict[str, str]:
    """A JSON tree as dotted keys and short texts (MLflow's parameters)."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for key, item in value.items():
            flat.update(_flat(f"{prefix}.{key}" if prefix else str(key), item))
        return flat
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return {prefix: text if len(text) <= _MAX_PARAM else f"{text[: _MAX_PARAM - 6]} [cut]"}


def _parameters(document: Mapping[str, Any]) -> dict[str, str]:
    flat = _flat(
        "",
        {
            "method": document["method"]["name"],
            "method_version": document["method"]["version"],
            "benchmark": document["benchmark"]["name"],
            "benchmark_version": document["benchmark"]["version"],
            "data_fingerprint": document["benchmark"]["data_fingerprint"],
            "seed": document["seed"],
            "budget": document["budget"],
            "config": document["method"]["config"],
        },
    )
    keys = mlflow_keys(flat)
    return {keys[name]: value for name, value in flat.items()}


def _metric_points(
    document: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> tuple[list[tuple[str, float, int]], dict[str, str]]:
    """(key, value, step) of every finite number, and MLflow key -> our name."""
    finals = {
        name: entry["value"]
        for name, entry in document["metrics"].items()
        if entry["value"] is not None
    }
    final_keys = mlflow_keys(finals)
    curve_keys = mlflow_keys(
        (name for row in history for name in row), prefix="train/", taken=final_keys.values()
    )
    points = [(final_keys[name], float(value), 0) for name, value in finals.items()]
    for index, row in enumerate(history):
        step = row.get("update", row.get("step", index))
        step = int(step) if isinstance(step, (int, float)) and math.isfinite(step) else index
        for name, value in row.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                points.append((curve_keys[name], float(value), step))
    originals = {key: name for name, key in final_keys.items()}
    originals |= {key: f"history: {name}" for name, key in curve_keys.items()}
    return points, originals


def _milliseconds(text: str | None) -> int | None:
    """Unix time in ms of an ISO 8601 text, or None."""
    try:
        return None if text is None else int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _tags(
    document: Mapping[str, Any], record: Mapping[str, Any], originals: Mapping[str, str]
) -> dict[str, str]:
    git = record.get("git") or {}
    tags = {
        "auto_research.cell_id": document["cell_id"],
        "auto_research.attempt": str(record.get("attempt", 1)),
        "auto_research.status": document["status"],
        "mlflow.source.name": "auto-research",
        "mlflow.source.type": "LOCAL",
    }
    if git.get("commit"):
        tags["mlflow.source.git.commit"] = git["commit"]
        tags["auto_research.git_dirty"] = str(git.get("dirty"))
    if document["error"] is not None:
        tags["auto_research.error"] = json.dumps(document["error"])[:_MAX_TAG]
    for key, name in originals.items():
        if encode_name(name) != name and not name.startswith("history: "):
            tags[f"auto_research.name/{key}"[:250]] = name[:_MAX_TAG]
    return tags


def save_request(
    run_dir: Path,
    metrics_document: Mapping[str, Any],
    run_record: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    artifacts: Iterable[Path],
) -> Path:
    """Write ``mirror.json``: all that MLflow is to be given about a run.

    Args:
        run_dir: Folder of the run.
        metrics_document: As written to the metrics file.
        run_record: As written to ``run.json``.
        history: One flat dict of numbers an update; ``update`` (else ``step``) is its step.
        artifacts: Files to attach; a path below ``run_dir`` is kept relative, so that it can move.

    Returns:
        The path of the request.

    Raises:
        OSError: If it cannot be written.
    """
    points, originals = _metric_points(metrics_document, history)
    started = run_record.get("started_at")
    attempt = run_record.get("attempt", 1)
    start_ms = _milliseconds(started) or int(time.time() * 1000)
    identity = json.dumps([metrics_document["cell_id"], attempt, started])
    root = run_dir.absolute()
    request = {
        "mirror_version": 1,
        "run_key": hashlib.sha256(identity.encode()).hexdigest(),
        "run_name": (
            f"{metrics_document['method']['name']}/{metrics_document['benchmark']['name']}"
            f"-seed{metrics_document['seed']}"
        ),
        "status": "FINISHED" if metrics_document["status"] == "ok" else "FAILED",
        "time_ms": start_ms,
        "end_time_ms": _milliseconds(run_record.get("finished_at")) or start_ms,
        "params": _parameters(metrics_document),
        "tags": _tags(metrics_document, run_record, originals),
        "metrics": points,
        "texts": {
            "metrics.json": strict_json.dumps(metrics_document),
            "run.json": strict_json.dumps(strict_json.finite_or_none(run_record)),
            "history.jsonl": strict_json.dump_lines(map(strict_json.finite_or_none, history)),
            "names.json": strict_json.dumps(originals),
        },
        "artifacts": [
            str(path.relative_to(root) if path.is_relative_to(root) else path)
            for path in (path.absolute() for path in artifacts)
        ],
    }
    path = run_dir / REQUEST_NAME
    atomic_write(path, strict_json.dumps(request).encode("utf-8"))
    return path
