"""MLflow's copy of a matrix: one process of MLflow for all of its cells."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import results, tracking
from harness.cell import CellOutcome
from harness.plan import PlannedCell
from harness.runner import CellResult
from harness.tracking_request import save_request

_ARTIFACTS = ("trajectories.jsonl", "worker.log")


class CellMirror:
    """Mirrors each cell once it has its document.

    Args:
        tracking_uri: ``--tracking-uri``.
        enabled: If not, only what ``track sync`` needs later is written.

    Raises:
        UserError: If the URI names no store.
    """

    def __init__(self, tracking_uri: str | None, *, enabled: bool) -> None:
        if enabled:
            tracking.check_tracking_uri(tracking_uri)
        self._uri = tracking_uri
        self._enabled = enabled
        self._child: tracking.Mirror | None = None

    def on_event(self, cell: PlannedCell, event: Mapping[str, Any]) -> None:
        """Start MLflow's process when the first worker has started up."""
        if event.get("event") == "ready" and self._child is None and self._enabled:
            self._child = tracking.Mirror.start(self._uri)

    def on_outcome(self, cell: PlannedCell, outcome: CellOutcome) -> str | None:
        """Hand over a cell within a bounded time; one that was mirrored before is left alone."""
        if outcome.document is None:
            return None
        mirrored_before = outcome.record["mlflow_run_id"] is not None
        if outcome.reused and (mirrored_before or not self._enabled):
            return None
        folder = cell.request.cell_dir
        try:
            request = self._save(folder, outcome)
        except (OSError, ValueError) as error:
            return f"Warning: this run cannot be mirrored later: no mirror.json ({error})."
        if not self._enabled:
            return None
        child, self._child = self._child or tracking.Mirror.start(self._uri), None
        with child:
            mirrored = child.submit(request, tracking.DEADLINE)
        if mirrored.run_id is None:
            return mirrored.message
        with contextlib.suppress(results.ResultsError):
            record = {**outcome.record, "mlflow_run_id": mirrored.run_id}
            results.write_run_record(folder / "run.json", record)
        return None

    def _save(self, folder: Path, outcome: CellOutcome) -> Path:
        assert outcome.document is not None
        try:
            history = results.read_lines(folder / "history.jsonl")
        except results.ResultsError:
            history = []
        files = [folder / name for name in _ARTIFACTS if (folder / name).is_file()]
        return save_request(folder, outcome.document, outcome.record, history, files)

    def close(self, found: Sequence[CellResult]) -> str | None:
        """End MLflow's process."""
        if self._child is not None:
            self._child.close()
        return None
