"""The MLflow mirror where something is wrong: bounded, one warning, and replayable (H2)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import results, tracking
from tests.harness.mirrored import (
    BOUND,
    assert_one_warning,
    finished_run,
    rows,
    timed,
)


def test_closed_port_costs_one_warning(tmp_path: Path) -> None:
    """H2: tracking server on a closed port; JSON unaffected."""
    run = finished_run(tmp_path / "run with space", seed=50)
    before = (run["run_dir"] / "metrics-file.json").read_bytes()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: nobody else opens it
        uri = f"http://user:hunter2@127.0.0.1:{reserved.getsockname()[1]}"
        outcome, seconds = timed(run, uri)
    assert_one_warning(outcome, seconds, Path(f"'{run['run_dir']}'"))
    assert "Connection refused" in outcome.message
    assert "hunter2" not in outcome.message
    assert outcome.message.endswith("(with the same --tracking-uri)")
    assert "hunter2" not in (run["run_dir"] / "mirror.json").read_text()
    assert (run["run_dir"] / "metrics-file.json").read_bytes() == before
    assert results.read_run_record(run["run_dir"] / "run.json")["mlflow_run_id"] is None


def test_server_that_never_answers_costs_one_warning(tmp_path: Path) -> None:
    """H2: the connection is accepted, and nothing comes back."""
    run = finished_run(tmp_path / "run", seed=51)
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        outcome, seconds = timed(run, uri, ready=False, timeout=5)
    assert_one_warning(outcome, seconds, run["run_dir"])


def test_locked_sqlite_costs_one_warning(store: dict[str, Any], tmp_path: Path) -> None:
    """H2: another writer holds the database; once it lets go, replay works."""
    run = finished_run(tmp_path / "run", seed=52)
    database = tmp_path / "mlflow.db"
    shutil.copy(store["database"], database)
    uri = f"sqlite:///{database}"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        outcome, seconds = timed(run, uri, ready=False, timeout=5)
        assert_one_warning(outcome, seconds, run["run_dir"])
        writer.execute("ROLLBACK")
    later = tracking.replay(run["run_dir"], uri)
    assert later.ok, later.message
    noted = results.read_run_record(run["run_dir"] / "run.json")["mlflow_run_id"]
    assert noted == later.run_id
    assert rows(database, "SELECT status FROM runs WHERE run_uuid = ?", later.run_id) == [
        ("FINISHED",)
    ]


def test_file_store_works_or_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H2: ``./mlruns``. MLflow 3 refuses folders unless told; naming one tells it."""
    monkeypatch.chdir(tmp_path)
    run = finished_run(tmp_path / "run", seed=53)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    outcome, seconds = timed(run)
    assert_one_warning(outcome, seconds, run["run_dir"])
    assert "maintenance mode" in outcome.message

    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    outcome, seconds = timed(run)
    assert outcome.ok, outcome.message
    assert seconds < BOUND
    assert list(tmp_path.glob(f"mlruns/*/{outcome.run_id}/metrics/r/mean_at_1"))


def test_child_that_dies_costs_one_warning(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", seed=54)
    mirror = tracking.Mirror.start(f"sqlite:///{tmp_path}/mlflow.db")
    process = mirror._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    outcome = mirror.finish(**run)
    assert_one_warning(outcome, time.monotonic() - began, run["run_dir"])
    assert "process ended" in outcome.message
    assert not mirror.finish(**run).ok  # a second call neither raises nor hangs


def test_missing_mlflow_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_run(tmp_path / "run", seed=55)
    (tmp_path / "mlflow.py").write_text("raise ImportError('No module named mlflow')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome, seconds = timed(run)
    assert_one_warning(outcome, seconds, run["run_dir"])
    assert "No module named mlflow" in outcome.message


def test_unwritable_run_folder_does_not_raise(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", seed=56)
    (tmp_path / "file").write_text("")
    with tracking.Mirror.start() as mirror:
        outcome = mirror.finish(**{**run, "run_dir": tmp_path / "file"})
    assert not outcome.ok
    assert "no mirror.json" in outcome.message


def test_child_ends_with_its_parent(tmp_path: Path) -> None:
    """A command that is killed leaves no MLflow process behind."""
    code = (
        "import sys, time\nfrom harness.tracking import Mirror\n"
        "m = Mirror.start(sys.argv[1]); print(m._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, f"sqlite:///{tmp_path}/mlflow.db"],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    for _ in range(300):
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child lives on")


# --- A real server


@pytest.fixture
def server(store: dict[str, Any], tmp_path: Path) -> Iterator[str]:
    """A real ``mlflow server`` on loopback."""
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(store["database"], folder / "mlflow.db")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    settings = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_real_server_works(server: str, tmp_path: Path) -> None:
    """H2: a server that is up takes the run, its artifacts included."""
    run = finished_run(tmp_path / "run", seed=57)
    outcome = tracking.mirror(**run, tracking_uri=server, timeout=60)
    assert outcome.ok, outcome.message
    url = f"{server}/api/2.0/mlflow/runs/get?run_id={outcome.run_id}"
    with urllib.request.urlopen(url, timeout=10) as response:
        found = json.load(response)["run"]
    assert found["info"]["status"] == "FINISHED"
    assert "r/mean_x40_1" in {metric["key"] for metric in found["data"]["metrics"]}
    url = f"{server}/get-artifact?run_id={outcome.run_id}&path=metrics.json"
    with urllib.request.urlopen(url, timeout=10) as response:
        assert response.read() == (run["run_dir"] / "metrics-file.json").read_bytes()
