"""``auto-research doctor``: what it finds, and what it says about what it does not find."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness import checks
from harness.cli.doctor import doctor


@pytest.fixture(scope="module")
def numerics() -> list[checks.Finding]:
    """One real probe for all tests: it imports torch."""
    return checks.numerics()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch, numerics: list[checks.Finding], tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "numerics", lambda: numerics)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


def found(findings: list[checks.Finding], name: str) -> checks.Finding:
    return next(finding for finding in findings if finding.name == name)


def test_probe_runs_pinned_and_tries_the_backends(numerics: list[checks.Finding]) -> None:
    assert found(numerics, "pinning").detail.startswith("1 thread")
    assert len(found(numerics, "fingerprint").detail) >= 16
    assert found(numerics, "blockwise").status == "ok"
    assert "differs from reference by" in found(numerics, "blockwise").detail
    flex = found(numerics, "flex")
    assert flex.status == "ok" or "CUDA" in flex.detail
    assert flex.status != "fail"


@pytest.mark.usefixtures("fast")
def test_working_core_exits_0() -> None:
    result = CliRunner().invoke(doctor, [], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "The core works." in result.output
    assert importlib.metadata.version("mlflow") in result.output
    assert "will be made by the first run" in result.output


@pytest.mark.usefixtures("fast")
def test_json_is_one_document() -> None:
    result = CliRunner().invoke(doctor, ["--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert {"core", "extra", "search", "numerics", "attention", "folders", "mlflow"} == {
        finding["area"] for finding in document["findings"]
    }


@pytest.mark.usefixtures("fast")
def test_unwritable_folder_fails_and_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(doctor, ["--metrics-dir", "file"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "-> give another folder with --metrics-dir" in result.output
    assert "The core does not work: metrics-dir." in result.output


@pytest.mark.usefixtures("fast")
def test_unreachable_store_is_no_failure() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        uri = f"http://me:hunter2@127.0.0.1:{reserved.getsockname()[1]}"
        result = CliRunner().invoke(doctor, ["--tracking-uri", uri], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Connection refused" in result.output
    assert "auto-research track sync" in result.output
    assert "hunter2" not in result.output


def test_locked_store_is_seen(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE runs (x)")
        writer.execute("BEGIN EXCLUSIVE")
        finding = checks.tracking_store(f"sqlite:///{database}")
        assert (finding.status, finding.detail) == ("missing", "database is locked")
        writer.execute("ROLLBACK")
        finding = checks.tracking_store(f"sqlite:///{database}")
        assert (finding.status, finding.detail) == ("ok", "0 runs")


def test_missing_parts_say_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in {"transformers", "safetensors"}:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1" if name == "click" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    findings = checks.packages()
    extra, core, old = (found(findings, name) for name in ("hf", "safetensors", "click"))
    assert (extra.status, extra.detail) == ("missing", "transformers not installed")
    assert "pip install" in extra.fix
    assert "[hf]" in extra.fix
    assert (core.status, core.detail) == ("fail", "not installed")
    assert (old.status, old.detail) == ("fail", "0.1, needs >=8.1")


def test_broken_torch_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (finding,) = checks.numerics()
    assert finding.status == "fail"
    assert "libtorch.so: cannot open" in finding.detail


def test_python_without_fts5_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        def execute(self, _: str) -> Any:
            raise sqlite3.OperationalError("no such module: fts5")

        def close(self) -> None:
            pass

    monkeypatch.setattr(sqlite3, "connect", lambda _: Without())
    finding = checks.search_index()
    assert finding.status == "fail"
    assert "no such module: fts5" in finding.detail
