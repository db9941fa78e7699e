"""Running one cell: claim its folder, reuse or resume what is there, run a worker, record the end.

A cell's folder, ``<runs>/<method>/<benchmark>-seed<N>-<id12>/``:

=================== =============================================================
lock                who runs the cell (see ``harness.lock``)
code-fingerprint    which code began the cell (``provenance.code_fingerprint``)
request.json        what the worker was asked to do
metrics.json        the result: the stable document, success or failure
run.json            the record of the latest attempt; earlier ones in attempts/
outcome.json        how the worker ended, and its traceback
history.jsonl       the learning curve, one update a line
trajectories.jsonl  episodes for people to read
events.jsonl        progress, over all attempts
worker.log          what the worker printed, over all attempts
(others)            the method's checkpoint, from which a re-run continues
=================== =============================================================
"""

from __future__ import annotations

import functools
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import provenance, results, strict_json
from harness.atomic import atomic_write
from harness.errors import UserError
from harness.launch import WorkerExit, run_worker
from harness.lock import CellLock
from harness.scrub import scrub_paths
from harness.spec import CellSpec
from harness.variants import Variant

_CODE_FILE = "code-fingerprint"
_ATTEMPT_FILES = ("run.json", "metrics.json", "outcome.json", "request.json")


@dataclass(frozen=True)
class CellRequest:
    """What to run and where to keep it.

    Args:
        spec: The cell.
        runs_dir: Root of all cell folders and of the base policies' cache.
        plugins: Plugin files that the worker loads too.
        variant: How a suite made the cell's method, if it did; the worker makes it again.
        origins: Where method and benchmark were registered, for the record.
        argv: The command as typed, for the record.
    """

    spec: CellSpec
    runs_dir: Path
    plugins: Sequence[Path] = ()
    variant: Variant | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    argv: Sequence[str] = ()

    @property
    def cell_dir(self) -> Path:
        """The cell's folder."""
        return self.runs_dir.absolute() / self.spec.cell_name

    @functools.cached_property
    def code(self) -> str | None:
        """Fingerprint of the code that would run the cell."""
        return provenance.code_fingerprint(self.plugins)


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended.

    Args:
        status: ``"ok"``, ``"failed"`` or ``"interrupted"``.
        document: The metrics document; None if interrupted.
        record: The run record (``run.json``).
        reused: The result was there already and nothing was run.
    """

    status: str
    document: dict[str, Any] | None
    record: dict[str, Any]
    reused: bool = False


def run_cell(
    request: CellRequest,
    *,
    force: bool = False,
    on_event: Callable[[Mapping[str, Any]], None] = lambda event: None,
    stop_level: Callable[[], int] = lambda: 0,
) -> CellOutcome:
    """Run a cell to its end, or give the successful result that its folder holds.

    An earlier attempt that was cut off is continued from its checkpoint by the method itself; its
    record is kept in ``attempts``. Where other code began it, a continuation would be the result of
    neither: all of it is set aside with a warning event, and the cell starts over. A failure of any
    kind in the worker gives a failed outcome, never an exception.

    Args:
        request: What to run.
        force: Set everything in the folder aside (into ``attempts``) and start anew.
        on_event: Receives the worker's progress.
        stop_level: Polled: 0 run on, 1 save and stop, 2 stop at once.

    Raises:
        UserError: If another process runs this cell, or the folder cannot be written.
    """
    cell_dir = request.cell_dir
    try:
        with CellLock(cell_dir) as lock:
            if not force and (reused := finished(cell_dir, request.spec)) is not None:
                return reused
            foreign = None if force else _begun_by_other_code(cell_dir, request.code)
            attempt = _set_aside(cell_dir, everything=force or foreign is not None)
            if foreign is not None:
                on_event({"event": "warning", "message": foreign})
            return _attempt(request, attempt, lock.descriptor, on_event, stop_level)
    except (OSError, results.ResultsError) as error:
        reason = error.reason if isinstance(error, results.ResultsError) else error.strerror
        raise UserError(
            f"The cell's folder {cell_dir} cannot be used: {reason or error}.",
            hint="Give a directory that you can write to with --runs-dir, or free some space.",
        ) from error


def finished(cell_dir: Path, spec: CellSpec) -> CellOutcome | None:
    """The successful result in a folder, or None if there is none that can be trusted."""
    try:
        document = results.read_metrics(cell_dir / "metrics.json")
        record = results.read_run_record(cell_dir / "run.json")
    except results.ResultsError:
        return None
    if document["cell_id"] != spec.cell_id or document["status"] != "ok":
        return None
    if record["status"] != "ok":
        return None  # the parent was killed between the two files; the method continues at its end
    return CellOutcome("ok", document, record, reused=True)


def _begun_by_other_code(cell_dir: Path, code: str | None) -> str | None:
    """A sentence if what the folder holds was begun by other code than this, else None."""
    try:
        before = (cell_dir / _CODE_FILE).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    if code is None or before == code:
        return None
    return (
        f"the code has changed since this cell was begun (code {before[:12]}, now {code[:12]}): it "
        f"starts over; what it had is kept in {cell_dir / 'attempts'}"
    )


def _set_aside(cell_dir: Path, *, everything: bool) -> int:
    """Move the files of the last attempt (or all) into ``attempts``; the number of the next one."""
    kept = cell_dir / "attempts"
    earlier = [path.name for path in kept.iterdir()] if kept.is_dir() else []
    number = max((int(name) for name in earlier if name.isdigit()), default=0) + 1
    if not (cell_dir / "run.json").exists() and not everything:
        return number
    movable = [
        path
        for path in cell_dir.iterdir()
        if path.name not in {"lock", "attempts"} and (everything or path.name in _ATTEMPT_FILES)
    ]
    if not movable:
        return number
    target = kept / f"{number:03d}"
    target.mkdir(parents=True)
    for path in movable:
        path.rename(target / path.name)
    return number + 1


def _attempt(
    request: CellRequest,
    attempt: int,
    lock: int,
    on_event: Callable[[Mapping[str, Any]], None],
    stop_level: Callable[[], int],
) -> CellOutcome:
    cell_dir = request.cell_dir
    if request.code is not None:
        atomic_write(cell_dir / _CODE_FILE, f"{request.code}\n".encode("ascii"))
    known = _known_at_start(request, attempt)
    run_file = cell_dir / "run.json"
    results.write_run_record(run_file, results.build_run_record(status="running", **known))
    base_dir = request.runs_dir.absolute() / "base" / (request.code or "unknown")[:12]
    job = {
        "spec": request.spec.to_json(),
        # A folder a code: a base that other code has built is not found, and so not mixed in.
        "base_dir": str(base_dir),
        "plugins": [str(Path(path).absolute()) for path in request.plugins],
        "variant": None if request.variant is None else request.variant.to_json(),
        "attempt": attempt,
    }
    # Without run.json nothing was set aside, and an old outcome would pass for this attempt's.
    (cell_dir / "outcome.json").unlink(missing_ok=True)
    ended = run_worker(cell_dir, job, on_event=on_event, stop_level=stop_level, keep_open=(lock,))
    outcome = _read_outcome(cell_dir, ended)
    document = _final_document(request, base_dir, outcome)
    facts = dict(outcome.get("facts", {}))
    known["extra"] |= {
        "exit_code": ended.returncode,
        "error": outcome["error"],
        "numerics_report": facts.pop("numerics_report", None),
    }
    record = results.build_run_record(
        status=outcome["status"],
        finished_at=provenance.now(),
        durations=outcome.get("durations"),
        peak_memory=outcome.get("peak_memory"),
        **known,
        **facts,
    )
    results.write_run_record(run_file, record)
    return CellOutcome(outcome["status"], document, record)


def _known_at_start(request: CellRequest, attempt: int) -> dict[str, Any]:
    """Fields of the run record that are known before the worker starts."""
    commit, dirty = provenance.git_state()
    return {
        "cell_id": request.spec.cell_id,
        "attempt": attempt,
        "started_at": provenance.now(),
        "argv": list(request.argv),
        "git_commit": commit,
        "git_dirty": dirty,
        "extra": {
            "origins": dict(request.origins),
            "plugins": {str(path): _sha256(path) for path in request.plugins},
            "code_fingerprint": request.code,
            "owner_pid": os.getpid(),
        },
    }


def _read_outcome(cell_dir: Path, ended: WorkerExit) -> dict[str, Any]:
    """What the worker wrote about its end, or why it could not."""
    try:
        outcome = strict_json.loads(strict_json.read_text(cell_dir / "outcome.json"))
    except (OSError, strict_json.StrictJSONError):
        outcome = None
    if ended.stopped_by_user:
        return {**(outcome or {}), "status": "interrupted", "error": None}
    if isinstance(outcome, dict):
        error = outcome["error"]
        if error is not None and error["type"] == "TeamError" and ended.out_of_memory:
            text = error["message"] + ". The kernel reports that it ran out of memory"
            outcome["error"] = {**error, "type": "oom", "message": text}
        return outcome
    kind, message = _unexplained_end(ended)
    if kind == "exited" and (last := _last_line(cell_dir / "worker.log")):
        message += f" Its last words: {last}"
    return {"status": "failed", "error": {"type": kind, "message": message, "traceback": None}}


def _last_line(path: Path) -> str:
    """The last line of a log, where a traceback has its message; empty if there is none."""
    try:
        lines = path.read_bytes()[-4000:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:500] if lines and not lines[-1].startswith("--- attempt") else ""


def _unexplained_end(ended: WorkerExit) -> tuple[str, str]:
    """Type and message for a worker that ended without a word; the exit code is in both cases."""
    if ended.returncode >= 0:
        return "exited", f"The worker ended with exit code {ended.returncode} and left no result."
    number = -ended.returncode
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown signal"
    text = f"The worker was killed by signal {number} ({name}), exit code {ended.returncode}."
    if ended.out_of_memory:
        return "oom", text + " The kernel reports that it ran out of memory."
    if number == signal.SIGKILL:
        text += " Often the kernel does this when memory runs out."
    return "killed", text


def _final_document(
    request: CellRequest, base_dir: Path, outcome: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The metrics document that goes with an outcome; a failure's is written here."""
    path = request.cell_dir / "metrics.json"
    if outcome["status"] == "ok":
        return results.read_metrics(path)
    if outcome["status"] == "interrupted":
        return None
    error = outcome["error"]
    # The metrics file is compared between machines; run.json and the log have the full text.
    places = {Path(plugin): f"<plugin>/{Path(plugin).name}" for plugin in request.plugins}
    places |= {request.cell_dir: "<cell>", base_dir: "<base>", request.runs_dir: "<runs>"}
    document = results.failed_document(
        **request.spec.document_head(),
        error_type=error["type"],
        message=scrub_paths(error["message"], places),
    )
    results.write_metrics(path, document)
    return document


def _sha256(path: Path) -> str | None:
    import hashlib

    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def command_line(argv: Sequence[str] | None = None) -> list[str]:
    """The command as typed, with the program's plain name.

    Args:
        argv: ``sys.argv`` if None.
    """
    argv = sys.argv if argv is None else list(argv)
    return ["auto-research", *argv[1:]]


def shown(argv: Sequence[str]) -> str:
    """A command as text that can be pasted into a shell."""
    return shlex.join(argv)
