"""The MLflow side of the mirror, in a process of its own: ``python -m harness.tracking_worker``.

MLflow takes seconds to import and a new store needs its tables made, and a dead server or a locked
database can block for minutes. In a process of its own all that happens beside the cell, and a
deadline can end it.

Protocol: the tracking URI comes in ``MLFLOW_TRACKING_URI``. The process opens the store, then reads
lines from standard input, each the path of a mirror request (written by :mod:`harness.tracking`), and
mirrors it. It writes JSON lines to standard output: ``{"phase": ...}`` when it begins something, and
for each request ``{"ok": true, "run_id": ...}`` or ``{"ok": false, "message": ...}``. It ends with
its input.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

URI_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT = "auto-research"


def sqlite_file(uri: str) -> Path | None:
    """The database file of a ``sqlite:///`` URI (absolute), or None for any other URI."""
    if not uri.startswith("sqlite:///"):
        return None
    name = uri.removeprefix("sqlite:///").split("?", 1)[0]
    return Path(name).absolute() if name and name != ":memory:" else None


@contextlib.contextmanager
def _store_lock(database: Path) -> Iterator[None]:
    """Let one process at a time make the tables: cells may start together on a fresh directory."""
    with open(f"{database}.lock", "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _dispose(client: Any) -> None:
    """Close the connections of a client whose store is about to be renamed."""
    engine = getattr(getattr(client._tracking_client, "store", None), "engine", None)
    if engine is not None:
        engine.dispose()


def _create_sqlite(database: Path) -> None:
    """Make an empty MLflow store at ``database`` in one step.

    The tables are made in a file beside it, which is renamed when complete: a process that is
    killed half way leaves no half-migrated database that refuses all later runs.
    """
    from mlflow import MlflowClient

    def exists() -> bool:
        return database.exists() and database.stat().st_size > 0

    if exists():
        return
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"the folder of its database, {database.parent}, cannot be made ({error.strerror})"
        ) from None
    with _store_lock(database):
        if exists():
            return
        fresh = database.with_name(f"{database.name}.new")
        for name in (fresh, Path(f"{fresh}-journal")):
            name.unlink(missing_ok=True)
        _dispose(MlflowClient(f"sqlite:///{fresh}"))
        os.replace(fresh, database)


def _open(uri: str) -> tuple[Any, str]:
    """A client for ``uri`` and the id of our experiment in it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    database = sqlite_file(uri)
    if database is not None:
        _create_sqlite(database)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        location = None
        if database is not None:
            location = (database.parent / "mlartifacts").as_uri()
        try:
            return client, client.create_experiment(EXPERIMENT, artifact_location=location)
        except MlflowException:  # another process was faster
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise RuntimeError(
            f"its experiment {EXPERIMENT!r} is deleted; restore it with: mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}"
        )
    return client, experiment.experiment_id


def load_request(path: Path) -> dict[str, Any]:
    """Read a mirror request; its artifact paths are relative to its folder, so that it can move.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not a request of a version that this code understands.
    """
    request = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(request, dict) or request.get("mirror_version") != 1:
        raise ValueError(f"{path} is no mirror request of version 1")
    request["artifacts"] = [str(path.parent / name) for name in request["artifacts"]]
    return request


def _find_run(client: Any, experiment_id: str, run_key: str) -> Any | None:
    """The run that an earlier attempt to mirror the same cell made, if any."""
    query = f"tags.`auto_research.run_key` = '{run_key}'"
    found = client.search_runs([experiment_id], filter_string=query, max_results=1)
    return found[0] if found else None


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _log(client: Any, run_id: str, request: dict[str, Any]) -> None:
    """Log everything; repeating it on the same run changes nothing (fixed timestamps)."""
    from mlflow.entities import Metric, Param, RunTag

    params = [Param(key, value) for key, value in request["params"].items()]
    tags = [RunTag(key, value) for key, value in request["tags"].items()]
    metrics = [
        Metric(key, value, request["time_ms"], step) for key, value, step in request["metrics"]
    ]
    for batch in _batches(params, 100):
        client.log_batch(run_id, params=batch)
    for batch in _batches(tags, 100):
        client.log_batch(run_id, tags=batch)
    for batch in _batches(metrics, 1000):
        client.log_batch(run_id, metrics=batch)
    for name, text in request["texts"].items():
        client.log_text(run_id, text, name)
    missing = []
    for name in request["artifacts"]:
        if Path(name).is_file():
            client.log_artifact(run_id, name)
        else:
            missing.append(Path(name).name)
    if missing:
        client.set_tag(run_id, "auto_research.missing_artifacts", ", ".join(missing)[:5000])


def _mirror(client: Any, experiment_id: str, request: dict[str, Any]) -> str:
    """Mirror one request; a run that is already complete is left as it is."""
    run = _find_run(client, experiment_id, request["run_key"])
    if run is not None and run.data.tags.get("auto_research.mirrored") == "complete":
        return str(run.info.run_id)
    if run is None:
        run = client.create_run(
            experiment_id,
            start_time=request["time_ms"],
            tags={"auto_research.run_key": request["run_key"]},
            run_name=request["run_name"],
        )
    run_id = str(run.info.run_id)
    _log(client, run_id, request)
    client.set_terminated(run_id, status=request["status"], end_time=request["end_time_ms"])
    client.set_tag(run_id, "auto_research.mirrored", "complete")
    return run_id


def _one_line(error: BaseException) -> str:
    """The gist of an error: MLflow's and SQLAlchemy's messages go on for pages."""
    text = " ".join(str(error).split()) or type(error).__name__
    refused = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
    if "HTTPConnectionPool" in text or "HTTPSConnectionPool" in text:
        timed_out = "the server does not answer" if "timed out" in text else "request failed"
        return f"cannot reach it: {refused.group(1) if refused else timed_out}"
    for marker in ("(Background on this error", "[SQL:"):
        text = text.partition(marker)[0].rstrip()
    return text if len(text) <= 300 else text[:300] + "..."


def serve(uri: str, requests: Iterable[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Open the store, then mirror each request and answer it.

    Args:
        uri: Tracking URI.
        requests: Paths of request files, one a line.
        answer: Called with each JSON-ready message.
    """
    opened: tuple[Any, str] | None = None
    answer({"phase": "importing mlflow"})
    try:
        import mlflow  # noqa: F401

        answer({"phase": "opening the store"})
        opened = _open(uri)
    except Exception as error:  # noqa: BLE001 - the store may be up again when the cell is done
        answer({"early_failure": _one_line(error)})
    answer({"phase": "waiting"})
    for line in requests:
        try:
            if opened is None:
                answer({"phase": "opening the store"})
                opened = _open(uri)
            answer({"phase": "logging the run"})
            path = Path(line.rstrip("\n"))
            answer({"ok": True, "run_id": _mirror(*opened, load_request(path))})
        except Exception as error:  # noqa: BLE001 - whatever MLflow raises becomes one warning
            answer({"ok": False, "message": _one_line(error)})


def main() -> None:
    """Run the protocol on standard input and output, with everything else kept off them."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # MLflow prints greetings to standard output

    def answer(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    with contextlib.suppress(BrokenPipeError):
        serve(os.environ[URI_VARIABLE], sys.stdin, answer)
    os._exit(0)  # MLflow's exit handlers may wait for threads that talk to a dead server


if __name__ == "__main__":
    main()
