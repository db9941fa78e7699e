"""The MLflow mirror where all is well: what it logs, under which names, and to whom it talks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from harness import results, tracking
from harness.cli.track import track
from harness.tracking_names import decode_name, encode_name, mlflow_keys
from tests.harness.mirrored import NAMES, finished_run, rows


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
