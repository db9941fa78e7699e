"""The MLflow mirror: bounded, quiet, replayable, and never in the way of the results.

MLflow is imported by the mirror's child processes only; the tests look into its SQLite file.
"""

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
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from harness import results, tracking
from harness.cli.track import track
from harness.tracking_names import decode_name, encode_name, mlflow_keys
from methods.base import MetricSpec, MetricValue

NAMES = ["joint_success", "r/mean@1", "r/mean_at_1", "r/mean_x40_1", "undefined", "a//b", "ñ%"]
HISTORY = [{"update": step, "loss": 1.0 / (step + 1), "kl": float("nan")} for step in range(3)]
BOUND = 10.0


def finished_run(run_dir: Path, seed: int = 42) -> dict[str, Any]:
    """A finished run's files, and the arguments of ``finish``."""
    cell_id = f"{seed:064x}"
    document = results.build_metrics_document(
        cell_id=cell_id,
        method={"name": "sinkflex-rl", "version": "1", "config": {"grpo": {"clip": 0.2}, "x": "é"}},
        benchmark={"name": "scalemcp-mini", "version": "1", "data_fingerprint": "f"},
        seed=seed,
        budget={"episodes": 3, "updates": 3},
        specs={n: MetricSpec(n, "share", "maximize", None, None, "") for n in NAMES},
        values={
            name: MetricValue(float("nan") if name == "undefined" else index / 8, 3)
            for index, name in enumerate(NAMES)
        },
        samples={"joint_success": [0.0, 1.0]},
    )
    record = results.build_run_record(
        cell_id=cell_id,
        status="ok",
        started_at="2026-01-02T03:04:05+00:00",
        finished_at="2026-01-02T03:05:05+00:00",
        git_commit="c0ffee",
        git_dirty=False,
    )
    run_dir.mkdir(parents=True)
    results.write_run_record(run_dir / "run.json", record)
    results.write_metrics(run_dir / "metrics-file.json", document)
    (run_dir / "trajectories.jsonl").write_text('{"task": 0}\n')
    return {
        "run_dir": run_dir,
        "metrics_document": document,
        "run_record": record,
        "history": HISTORY,
        "artifacts": [run_dir / "trajectories.jsonl", run_dir / "gone.txt"],
    }


def rows(database: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def assert_one_warning(outcome: tracking.MirrorOutcome, seconds: float, run_dir: Path) -> None:
    assert not outcome.ok
    assert outcome.run_id is None
    assert seconds < BOUND
    assert "\n" not in outcome.message
    assert "Traceback" not in outcome.message
    assert f"auto-research track sync {run_dir}" in outcome.message


def timed(
    run: dict[str, Any], uri: str | None = None, *, ready: bool = True, timeout: float = BOUND
) -> tuple[tracking.MirrorOutcome, float]:
    """Finish a run whose child was started earlier, as a command does, and how long that took.

    Args:
        run: Arguments of ``finish``.
        uri: Tracking URI.
        ready: Wait until the child has opened the store, or has failed to: as long as a cell lasts
            at least, even when this machine is busy with other tests.
        timeout: Seconds that ``finish`` may take.
    """
    with tracking.Mirror.start(uri) as mirror:
        process = mirror._process
        assert process is not None
        assert process.stdout is not None
        while ready and b'"waiting"' not in mirror._buffer:
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            mirror._buffer += data
        began = time.monotonic()
        outcome = mirror.finish(**run, timeout=timeout)
        return outcome, time.monotonic() - began


# --- A local store -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two cells that start together in a fresh folder, where a killed process left half a store."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "mlflow.db.new").write_bytes(b"half a database")
    runs = [finished_run(folder / "runs" / str(seed), seed) for seed in (42, 43)]
    old = Path.cwd()
    os.chdir(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            mirrors = [tracking.Mirror.start() for _ in runs]
            outcomes = [
                mirror.finish(**run, timeout=60) for mirror, run in zip(mirrors, runs, strict=True)
            ]
    finally:
        os.chdir(old)
    return {
        "folder": folder,
        "database": folder / "mlflow.db",
        "uri": f"sqlite:///{folder}/mlflow.db",
        "runs": runs,
        "outcomes": outcomes,
    }


@pytest.fixture(scope="module", autouse=True)
def server_process(
    store: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """A real ``mlflow server`` on loopback that starts while the other tests run."""
    folder = tmp_path_factory.mktemp("server")
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
    yield process, port, folder / "log"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_default_store_is_made_here_by_cells_that_start_together(store: dict[str, Any]) -> None:
    assert [outcome.ok for outcome in store["outcomes"]] == [True, True], store["outcomes"]
    found = rows(store["database"], "SELECT run_uuid, name, status FROM runs")
    assert {row[0] for row in found} == {outcome.run_id for outcome in store["outcomes"]}
    assert {row[1:] for row in found} == {
        ("sinkflex-rl/scalemcp-mini-seed42", "FINISHED"),
        ("sinkflex-rl/scalemcp-mini-seed43", "FINISHED"),
    }
    beside = {path.name for path in store["folder"].iterdir()}
    assert beside == {"mlflow.db", "mlflow.db.lock", "mlartifacts", "runs"}


def test_refused_metric_names_do_not_collide(store: dict[str, Any]) -> None:
    """H3: both logged without colliding; the JSON keeps the originals."""
    run_id = store["outcomes"][0].run_id
    found = rows(
        store["database"],
        "SELECT key, value FROM metrics WHERE run_uuid = ? AND key NOT LIKE 'train/%'",
        run_id,
    )
    assert {decode_name(key): value for key, value in found} == {
        name: index / 8 for index, name in enumerate(NAMES) if name != "undefined"
    }
    assert {"joint_success", "r/mean_at_1", "r/mean_x40_1", "r/mean_x5f_x40_1"} <= {
        key for key, _ in found
    }
    artifacts = store["folder"] / "mlartifacts" / str(run_id) / "artifacts"
    originals = json.loads((artifacts / "names.json").read_text())
    assert originals["r/mean_x40_1"] == "r/mean@1"
    assert "r/mean@1" in json.loads((artifacts / "metrics.json").read_text())["metrics"]
    tag = "SELECT value FROM tags WHERE run_uuid = ? AND key = 'auto_research.name/r/mean_x40_1'"
    assert rows(store["database"], tag, run_id) == [("r/mean@1",)]


def test_curve_has_steps_and_no_nan(store: dict[str, Any]) -> None:
    run_id = store["outcomes"][0].run_id
    query = "SELECT step, value, is_nan FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step"
    assert rows(store["database"], query, run_id, "train/loss") == [
        (step, 1.0 / (step + 1), 0) for step in range(3)
    ]
    assert rows(store["database"], query, run_id, "train/kl") == []


def test_params_tags_and_artifacts(store: dict[str, Any]) -> None:
    run_id = store["outcomes"][0].run_id
    params = dict(rows(store["database"], "SELECT key, value FROM params WHERE run_uuid=?", run_id))
    assert params["config.grpo.clip"] == "0.2"
    assert params["budget.episodes"] == "3"
    assert params["seed"] == "42"
    assert (params["method"], params["benchmark"]) == ("sinkflex-rl", "scalemcp-mini")
    tags = dict(rows(store["database"], "SELECT key, value FROM tags WHERE run_uuid=?", run_id))
    assert tags["mlflow.source.git.commit"] == "c0ffee"
    assert tags["auto_research.cell_id"] == f"{42:064x}"
    assert tags["auto_research.status"] == "ok"
    assert tags["auto_research.missing_artifacts"] == "gone.txt"
    artifacts = store["folder"] / "mlartifacts" / str(run_id) / "artifacts"
    run_dir = store["runs"][0]["run_dir"]
    assert (artifacts / "metrics.json").read_bytes() == (run_dir / "metrics-file.json").read_bytes()
    assert (artifacts / "trajectories.jsonl").read_text() == '{"task": 0}\n'
    assert results.read_lines(artifacts / "history.jsonl")[2]["kl"] is None


def test_replay_is_idempotent_and_completes_a_killed_mirror(
    store: dict[str, Any], tmp_path: Path
) -> None:
    database = tmp_path / "copy.db"
    shutil.copy(store["database"], database)
    killed = store["outcomes"][1].run_id
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "DELETE FROM tags WHERE key = 'auto_research.mirrored' AND run_uuid = ?", (killed,)
        )
        connection.execute("DELETE FROM metrics WHERE run_uuid = ? AND step > 1", (killed,))
        connection.execute("UPDATE runs SET status = 'RUNNING' WHERE run_uuid = ?", (killed,))
        connection.commit()
    result = CliRunner().invoke(
        track,
        ["sync", str(store["folder"]), "--tracking-uri", f"sqlite:///{database}", "--json"],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    said = [(row["ok"], row["run_id"]) for row in json.loads(result.stdout)]
    assert said == [(True, outcome.run_id) for outcome in store["outcomes"]]
    for query in (
        "SELECT run_uuid, key, step, value FROM metrics ORDER BY 1, 2, 3",
        "SELECT run_uuid, status FROM runs ORDER BY 1",
        "SELECT run_uuid, key, value FROM tags ORDER BY 1, 2",
    ):
        assert rows(database, query) == rows(store["database"], query)
    record = results.read_run_record(store["runs"][0]["run_dir"] / "run.json")
    assert record["mlflow_run_id"] == store["outcomes"][0].run_id


# --- Outages -------------------------------------------------------------------------------------


def test_closed_port_costs_one_warning(store: dict[str, Any], tmp_path: Path) -> None:
    """H2: tracking server on a closed port; JSON unaffected; a later replay works."""
    run = finished_run(tmp_path / "run with space", seed=50)
    before = (run["run_dir"] / "metrics-file.json").read_bytes()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: nobody else opens it
        uri = f"http://user:hunter2@127.0.0.1:{reserved.getsockname()[1]}"
        outcome, seconds = timed(run, uri)
    assert_one_warning(outcome, seconds, Path(f"'{run['run_dir']}'"))
    assert "Connection refused" in outcome.message
    assert "hunter2" not in outcome.message
    assert "hunter2" not in (run["run_dir"] / "mirror.json").read_text()
    assert (run["run_dir"] / "metrics-file.json").read_bytes() == before
    assert results.read_run_record(run["run_dir"] / "run.json")["mlflow_run_id"] is None

    later = tracking.replay(run["run_dir"], store["uri"])
    assert later.ok, later.message
    noted = results.read_run_record(run["run_dir"] / "run.json")["mlflow_run_id"]
    assert noted == later.run_id


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


# --- A real server, and nobody else --------------------------------------------------------------


@pytest.fixture(scope="module")
def server(server_process: tuple[subprocess.Popen[bytes], int, Path]) -> str:
    """The URI of a real ``mlflow server`` that answers."""
    process, port, log = server_process
    for _ in range(1200):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            return f"http://127.0.0.1:{port}"
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    pytest.fail(f"the server does not start: {log.read_text()}")


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


def test_nothing_phones_home(store: dict[str, Any], tmp_path: Path) -> None:
    """A whole mirror to a local store looks up no name and opens no connection."""
    run = finished_run(tmp_path / "run", seed=58)
    path = tracking.save_request(**run)
    code = """
import sys
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto") and (
        event != "socket.connect" or not isinstance(args[1], str)
    ):
        sys.stderr.write(f"NETWORK {event} {args[1:]}\\n")
sys.addaudithook(hook)
import runpy, socket
if sys.argv.pop() == "self-test":
    try: socket.create_connection(("127.0.0.1", 9), timeout=1)
    except OSError: pass
else:
    runpy.run_module("harness.tracking_worker", run_name="__main__")
"""
    # Telemetry is also off where it looks like CI or a test, which must not be why it is quiet.
    hidden = ("CI", "PYTEST", "GITHUB", "GITLAB", "JENKINS", "TRAVIS", "BUILDKITE", "TEAMCITY")
    environment = {
        key: value
        for key, value in tracking._child_environment(store["uri"]).items()
        if not key.startswith(hidden)
    }

    def run_child(mode: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, mode],
            input=f"{path}\n",
            capture_output=True,
            text=True,
            env=environment,
            timeout=100,
            check=True,
        )

    assert "NETWORK socket.connect" in run_child("self-test").stderr
    done = run_child("mirror")
    assert '"ok": true' in done.stdout, done.stdout + done.stderr
    assert "NETWORK" not in done.stderr


# --- Names, requests and the command -------------------------------------------------------------


@given(st.text(max_size=60) | st.text(alphabet="_x40/.@ af", max_size=12))
def test_every_name_comes_back(name: str) -> None:
    """H3: the encoding can be inverted, so two names never become one; and MLflow takes it."""
    key = encode_name(name)
    assert decode_name(key) == name
    assert key.isascii()
    assert os.path.normpath(key) == key
    assert not key.startswith(("/", ".."))
    assert key != "."
    assert all(char.isalnum() or char in "_-./ " for char in key)


def test_keys_differ_also_where_case_or_length_would_merge_them() -> None:
    names = ["Loss", "loss", "n" * 300 + "a", "n" * 300 + "b", "@" * 100]
    keys = mlflow_keys(names, prefix="train/", taken=["TRAIN/LOSS"])
    assert len({key.casefold() for key in keys.values()} | {"train/loss"}) == len(names) + 1
    assert max(map(len, keys.values())) <= 250
    assert keys == mlflow_keys(reversed(names), prefix="train/", taken=["TRAIN/LOSS"])


def test_request_moves_with_its_folder(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "here")
    outside = tmp_path / "outside.txt"
    run["artifacts"].append(outside)
    request = json.loads(tracking.save_request(**run).read_text())
    assert request["artifacts"] == ["trajectories.jsonl", "gone.txt", str(outside)]


def test_tracking_uri_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.resolve_tracking_uri(None) == "sqlite:///mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    assert tracking.resolve_tracking_uri(None) == "http://there"
    assert tracking.resolve_tracking_uri("http://here") == "http://here"


def test_sync_says_what_it_needs(tmp_path: Path) -> None:
    from harness.errors import UserError

    with pytest.raises(UserError, match="is not a directory"):
        CliRunner().invoke(track, ["sync", str(tmp_path / "no")], catch_exceptions=False)
    with pytest.raises(UserError, match="nothing to mirror"):
        CliRunner().invoke(track, ["sync", str(tmp_path)], catch_exceptions=False)
