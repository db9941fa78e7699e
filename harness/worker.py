"""One cell in one fresh process: ``python -m harness.worker REQUEST.json``.

:mod:`harness.launch` starts it, with threads and instruction sets pinned in the environment before
the interpreter starts. Whatever happens here ends in a file: ``metrics.json`` on success, and
``outcome.json`` with status, error and what was measured about the run. A worker that is killed
leaves neither, which its parent reports as a failure too.

Exit codes: 0 finished, 1 failed, 130 interrupted after saving what it needs to continue.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from harness import provenance, results, strict_json
from harness.atomic import atomic_write
from harness.builtins import registries
from harness.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UserError
from harness.events import EventWriter
from harness.launch import PINNED_ENVIRONMENT
from harness.seeding import HashSeeds
from harness.spec import CellSpec, build_spec
from harness.variants import Variant, register_variants
from methods.base import BenchmarkResult, Interrupted, Method, RunContext


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cell of a request file; see the module's docstring.

    Args:
        argv: Command line without the program's name.
    """
    parser = argparse.ArgumentParser(prog="python -m harness.worker")
    parser.add_argument("request", type=Path, help="request.json of a cell folder")
    parser.add_argument("--events-fd", type=int, help="pipe that receives events as JSON lines")
    parser.add_argument("--lifeline-fd", type=int, help="pipe whose end means: the parent is gone")
    arguments = parser.parse_args(argv)
    faulthandler.enable()
    for descriptor in (arguments.events_fd, arguments.lifeline_fd):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    if arguments.lifeline_fd is not None:
        threading.Thread(
            target=_die_with_parent, args=(arguments.lifeline_fd,), daemon=True
        ).start()
    request = json.loads(arguments.request.read_text(encoding="utf-8"))
    sys.path.extend(entry for entry in request["sys_path"] if entry not in sys.path)
    return Worker(request, arguments.request.parent, arguments.events_fd).run()


def _die_with_parent(descriptor: int) -> None:
    """End this process, and what it started, once the parent is gone.

    The parent never writes: reading returns when its end closes, however it died. The last
    checkpoint stands; the same command continues from it.
    """
    while os.read(descriptor, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(EXIT_INTERRUPTED)


class Worker:
    """Runs one cell.

    Args:
        request: ``{"spec", "base_dir", "plugins", "variant", "sys_path", "attempt"}``.
        cell_dir: The cell's folder.
        events_fd: Pipe for events, or None.
    """

    def __init__(self, request: Mapping[str, Any], cell_dir: Path, events_fd: int | None) -> None:
        self._request = request
        self._cell_dir = cell_dir
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._events = EventWriter(cell_dir / "events.jsonl", events_fd, request["attempt"])
        self._facts: dict[str, Any] = {}
        self._team_peaks: list[int] = []

    def run(self) -> int:
        """Run, record, and give the exit code; only the death of the process escapes it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        self._events.write({"event": "started", "pid": os.getpid()})
        error: dict[str, str] | None = None
        try:
            status, code = "ok", EXIT_OK
            self._compute()
        except (Interrupted, KeyboardInterrupt):
            status, code = "interrupted", EXIT_INTERRUPTED
        except BaseException as failure:  # noqa: BLE001  also SystemExit: a cell must not end unseen
            status, code = "failed", EXIT_FAILED
            error = _describe(failure)
            print(error["traceback"], file=sys.stderr, flush=True)
        self._write_outcome(status, error)
        self._events.write({"event": "finished", "status": status})
        return code

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()

    def _compute(self) -> None:
        _pin_torch()
        spec = CellSpec.from_json(self._request["spec"])
        known = registries([Path(path) for path in self._request["plugins"]])
        if self._request["variant"] is not None:
            register_variants(known.methods, [Variant(**self._request["variant"])])
        method = known.methods.load(spec.method.name)
        benchmark = known.benchmarks.load(spec.benchmark.name)
        here = build_spec(
            method,
            benchmark,
            seed=spec.seed,
            episodes=spec.budget.episodes,
            updates=spec.budget.updates,
        )
        if here != spec:
            raise UserError(
                f"The worker would run cell {here.cell_id[:12]}, not {spec.cell_id[:12]}: method, "
                "benchmark or data changed between planning and running."
            )
        self._facts = _measure_machine()
        self._facts["durations"] = {"startup": time.monotonic() - self._started}
        if self._stop.is_set():
            raise Interrupted
        self._events.write({"event": "ready"})  # the first phase is timed from here
        result = benchmark.run(method, self._context(spec, method))
        self._write_result(spec, result, benchmark.metric_specs)

    def _context(self, spec: CellSpec, method: Method) -> RunContext:
        return RunContext(
            seed=spec.seed,
            episodes=spec.budget.episodes,
            updates=spec.budget.updates,
            cell_dir=self._cell_dir,
            base_dir=Path(self._request["base_dir"]),
            seeds=HashSeeds(spec.seed),
            base_seeds=HashSeeds,
            report=self._report,
            should_stop=self._stop.is_set,
        )

    def _report(self, event: Mapping[str, Any]) -> None:
        """Pass an event on; what other processes of the cell needed is kept for the run record."""
        self._events.write(event)
        peaks = event.get("bytes") if event.get("event") == "memory" else None
        if isinstance(peaks, list) and all(type(peak) is int and peak > 0 for peak in peaks):
            # Teams of one cell run one after the other: the largest decides.
            self._team_peaks = max(self._team_peaks, peaks, key=sum)

    def _write_result(
        self, spec: CellSpec, result: BenchmarkResult, specs: Mapping[str, Any]
    ) -> None:
        document = results.build_metrics_document(
            **spec.document_head(), specs=specs, values=result.metrics, samples=result.samples
        )
        results.write_lines(self._cell_dir / "history.jsonl", result.history)
        results.write_lines(self._cell_dir / "trajectories.jsonl", result.trajectories)
        results.write_metrics(self._cell_dir / "metrics.json", document)

    def _write_outcome(self, status: str, error: dict[str, str] | None) -> None:
        durations = {**self._facts.pop("durations", {}), **self._events.phase_seconds()}
        durations["total"] = time.monotonic() - self._started
        outcome = {
            "status": status,
            "error": error,
            "durations": {name: round(seconds, 3) for name, seconds in durations.items()},
            "peak_memory": provenance.peak_memory(self._team_peaks),
            "facts": self._facts,
        }
        text = strict_json.dumps(outcome)
        atomic_write(self._cell_dir / "outcome.json", text.encode("utf-8"))


def _pin_torch() -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True)
    else:
        # The same for eager code, without loading the compiler: a second of every start.
        torch.set_deterministic_debug_mode("error")


def _measure_machine() -> dict[str, Any]:
    import torch

    from harness.numerics import numerics_fingerprint, numerics_report

    report = numerics_report()
    return {
        "python": provenance.python_version(),
        "platform": provenance.machine(),
        "packages": provenance.package_versions(),
        "device": provenance.device_name(),
        "threads": torch.get_num_threads(),
        "environment": {name: os.environ.get(name) for name in PINNED_ENVIRONMENT},
        "numerics_fingerprint": numerics_fingerprint(report),
        "numerics_report": report,
    }


def _describe(failure: BaseException) -> dict[str, str]:
    """Type, message and traceback of a failure; running out of memory is named ``oom``."""
    kind = type(failure).__name__
    message = str(failure)
    if (
        isinstance(failure, MemoryError)
        or "not enough memory" in message
        or "out of memory" in (message.lower())
    ):
        kind, message = "oom", f"{kind}: {message}" if message else kind
    text = "".join(traceback.format_exception(failure))
    clean = {"type": kind, "message": message or "(no message)", "traceback": text}
    return {key: value.encode("utf-8", "backslashreplace").decode() for key, value in clean.items()}


if __name__ == "__main__":
    sys.exit(main())
