"""A store that two mirrors made, for all tests of the mirror in one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness import tracking
from tests.harness.mirrored import finished_run


@pytest.fixture(scope="session")
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
