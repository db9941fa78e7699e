"""MLflow mirror of a run: convenient, bounded in time, and never the source of truth.

The metrics JSON and the run record are complete before a mirror is tried. A mirror request
(``mirror.json`` in the run's folder) holds all that goes to MLflow, so that a run can be mirrored
later, to any store, by :func:`replay` or ``auto-research track sync``. MLflow itself runs in a child
process (:mod:`harness.tracking_worker`), started at the beginning of a cell so that its import and
the making of a new store overlap with the cell; the command then waits a bounded time for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from harness import results
from harness.errors import UserError
from harness.launch import pinned_environment
from harness.tracking_request import REQUEST_NAME, save_request
from harness.tracking_worker import URI_VARIABLE

__all__ = [
    "DEADLINE",
    "DEFAULT_URI",
    "REQUEST_NAME",
    "Mirror",
    "MirrorOutcome",
    "check_tracking_uri",
    "mirror",
    "replay",
    "replay_all",
    "resolve_tracking_uri",
    "save_request",
    "shown_uri",
]

DEFAULT_URI = "sqlite:///mlflow.db"
DEADLINE = 10.0
"""Seconds that a command may spend waiting for MLflow, in all."""

_KILL_MARGIN = 0.5


@dataclass(frozen=True, slots=True)
class MirrorOutcome:
    """What became of a mirror.

    Args:
        ok: Whether the run is in MLflow now.
        run_id: MLflow's run id, or None.
        message: One line to show: where the run is, or why not and how to mirror it later.
    """

    ok: bool
    run_id: str | None
    message: str


def resolve_tracking_uri(flag: str | None) -> str:
    """The store to use: ``--tracking-uri``, else ``MLFLOW_TRACKING_URI``, else the local default."""
    return flag or os.environ.get(URI_VARIABLE) or DEFAULT_URI


def check_tracking_uri(flag: str | None) -> None:
    """Refuse a store that MLflow would take for a folder to be made in the current one.

    Args:
        flag: ``--tracking-uri``, or None for ``MLFLOW_TRACKING_URI`` and the default.

    Raises:
        UserError: If the URI has no scheme and is no folder that exists or is written as one.
    """
    uri = resolve_tracking_uri(flag) if flag != "" else ""
    known = "://" in uri or uri.startswith(("file:", "/", "./", "../")) or uri == "databricks"
    if known or (uri and Path(uri).is_dir()):
        return
    source = URI_VARIABLE if flag is None else "--tracking-uri"
    raise UserError(
        f"{source} is {uri!r}, which names no store.",
        hint="Allowed are sqlite:///FILE, http(s)://HOST, file:///FOLDER, other URIs with a scheme, "
        "and folders written as /FOLDER or ./FOLDER.",
    )


def shown_uri(uri: str) -> str:
    """A tracking URI without user name and password, for messages and files."""
    parts = urllib.parse.urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]).geturl()


# --- The child -----------------------------------------------------------------------------------


def _child_environment(uri: str) -> dict[str, str]:
    """The child's environment: nothing phones home, and short retries unless the user set longer."""
    defaults = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        # A person who names a folder as the store means it; MLflow 3 wants to be told so.
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    forced = {
        URI_VARIABLE: uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "PYTHONWARNINGS": "ignore",
    }
    return {**defaults, **pinned_environment(os.environ), **forced}


class Mirror:
    """A child process that has MLflow open for a run that is going on.

    Use :meth:`start` when the cell begins, :meth:`finish` once when its results are on disk, and
    :meth:`close` (or a ``with`` block) in any case. No method raises for what MLflow does, and a
    child that hangs is killed.
    """

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.flag = tracking_uri
        self.uri = resolve_tracking_uri(tracking_uri)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = b""
        self._phase = "starting a process for MLflow"
        self._early = ""
        self._spawn_error = ""

    @classmethod
    def start(cls, tracking_uri: str | None = None) -> Mirror:
        """Begin to import MLflow and to open (or make) the store; returns at once, never raises."""
        mirror = cls(tracking_uri)
        try:
            mirror._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
            mirror._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.tracking_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=mirror._errors,
                env=_child_environment(mirror.uri),
                start_new_session=True,  # Ctrl-C is for the cell; the command then closes us
            )
        except (OSError, ValueError) as error:
            mirror._spawn_error = str(error)
        return mirror

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child, at once; safe to call again."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def finish(
        self,
        run_dir: Path,
        metrics_document: Mapping[str, Any],
        run_record: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]],
        artifacts: Iterable[Path] = (),
        *,
        timeout: float = DEADLINE,
    ) -> MirrorOutcome:
        """Mirror the finished run and end the child.

        Args:
            run_dir: Folder of the run; ``mirror.json`` is written there first.
            metrics_document: As written to the metrics file.
            run_record: As written to ``run.json``.
            history: One flat dict of numbers an update.
            artifacts: Files to attach.
            timeout: Seconds after which the command goes on without MLflow.

        Returns:
            What became of it; its message is the one line to print. Never raises an ``Exception``.
        """
        deadline = time.monotonic() + timeout
        try:
            path = save_request(run_dir, metrics_document, run_record, history, artifacts)
        except Exception as error:  # noqa: BLE001 - a mirror must not end a run that succeeded
            self.close()
            return MirrorOutcome(False, None, f"MLflow mirror skipped: no mirror.json ({error})")
        try:
            return self.submit(path, deadline - time.monotonic())
        finally:
            self.close()

    def submit(self, request: Path, timeout: float) -> MirrorOutcome:
        """Mirror one saved request; the child stays for more unless it had to be killed."""
        try:
            answer = self._ask(request, time.monotonic() + max(0.0, timeout - _KILL_MARGIN))
        except Exception as error:  # noqa: BLE001 - as above
            answer = {"ok": False, "message": f"{type(error).__name__}: {error}"}
            self.close()
        if answer.get("ok"):
            run_id = str(answer["run_id"])
            return MirrorOutcome(True, run_id, f"MLflow: run {run_id} in {shown_uri(self.uri)}")
        where = shlex.quote(str(request.parent))
        option = f" --tracking-uri {shlex.quote(self.flag)}" if self.flag else ""
        if self.flag and shown_uri(self.flag) != self.flag:  # not the password, nor *** to paste
            option = " (with the same --tracking-uri)"
        why = self._redacted(" ".join(str(answer.get("message")).split()))
        return MirrorOutcome(
            False,
            None,
            f"MLflow mirror skipped ({shown_uri(self.uri)}): {why}. Results are complete without "
            f"it; mirror later with: auto-research track sync {where}{option}",
        )

    def _redacted(self, text: str) -> str:
        """An error text without the store's user name and password."""
        userinfo = urllib.parse.urlsplit(self.uri).netloc.rpartition("@")[0]
        secret = userinfo.partition(":")[2]
        for part in (userinfo, secret, urllib.parse.unquote(secret)):
            text = text.replace(part, "***") if part else text
        return text

    def _ask(self, request: Path, deadline: float) -> dict[str, Any]:
        """Send a request and wait for its answer until ``deadline`` (monotonic seconds)."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return {"ok": False, "message": self._spawn_error or "its process has ended"}
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(os.fsencode(request.absolute()) + b"\n")
            process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                for message in self._messages():
                    self._phase = message.get("phase", self._phase)
                    self._early = message.get("early_failure", self._early)
                    if "ok" in message:
                        return message
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    return self._give_up()
                data = os.read(process.stdout.fileno(), 65536)
                if not data:
                    return self._ended()
                self._buffer += data

    def _messages(self) -> list[dict[str, Any]]:
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def _give_up(self) -> dict[str, Any]:
        self.close()
        before = f" (first try: {self._early})" if self._early else ""
        return {"ok": False, "message": f"no answer in time while {self._phase}{before}"}

    def _ended(self) -> dict[str, Any]:
        """The child died: its last line of error output says why better than its exit code."""
        said = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
            said = f": {lines[-1][:300]}" if lines else ""
        self.close()
        return {"ok": False, "message": f"its process ended while {self._phase}{said}"}


# --- One call ------------------------------------------------------------------------------------


def mirror(
    run_dir: Path,
    metrics_document: Mapping[str, Any],
    run_record: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    artifacts: Iterable[Path] = (),
    *,
    tracking_uri: str | None = None,
    timeout: float = DEADLINE,
) -> MirrorOutcome:
    """Mirror a finished run without an early start: ``Mirror.start`` and ``finish`` in one.

    Args:
        run_dir: As in :meth:`Mirror.finish`, like the next four.
        metrics_document: Metrics JSON.
        run_record: Run record.
        history: Learning curve.
        artifacts: Files to attach.
        tracking_uri: Overrides ``MLFLOW_TRACKING_URI`` and the default.
        timeout: Seconds in all; making a new store takes a few of them.

    Returns:
        What became of it. Never raises an ``Exception``.
    """
    with Mirror.start(tracking_uri) as child:
        return child.finish(
            run_dir, metrics_document, run_record, history, artifacts, timeout=timeout
        )


def _note_run_id(run_dir: Path, run_id: str) -> None:
    """Put the run id into an existing run record; a record that cannot be used stays as it is."""
    path = run_dir / "run.json"
    with contextlib.suppress(results.ResultsError):
        record = results.read_run_record(path)
        results.write_run_record(path, {**record, "mlflow_run_id": run_id})


def replay_all(
    run_dirs: Sequence[Path], tracking_uri: str | None = None, *, timeout: float = 60.0
) -> list[MirrorOutcome]:
    """Mirror runs again from their ``mirror.json``; runs that are in the store stay as they are.

    Args:
        run_dirs: Folders of runs.
        tracking_uri: As in :func:`mirror`.
        timeout: Seconds for each run.

    Returns:
        One outcome a folder, in order. ``mlflow_run_id`` in each ``run.json`` is brought up to date.
    """
    outcomes = []
    child = Mirror.start(tracking_uri)
    try:
        for run_dir in run_dirs:
            request = run_dir / REQUEST_NAME
            if not request.is_file():
                said = f"{run_dir}: there is no {REQUEST_NAME}; give the folder of a finished run"
                outcomes.append(MirrorOutcome(False, None, said))
                continue
            if child._process is None:  # it was killed over the run before
                child = Mirror.start(tracking_uri)
            outcome = child.submit(request, timeout)
            if outcome.run_id is not None:
                _note_run_id(run_dir, outcome.run_id)
            outcomes.append(outcome)
    finally:
        child.close()
    return outcomes


def replay(
    run_dir: Path, tracking_uri: str | None = None, *, timeout: float = 60.0
) -> MirrorOutcome:
    """Mirror one run again; see :func:`replay_all`."""
    return replay_all([run_dir], tracking_uri, timeout=timeout)[0]
