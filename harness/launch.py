"""Starting a worker: a fresh interpreter with its numerics pinned, heard through a pipe.

Thread counts and instruction sets must be in the environment before the interpreter starts: torch,
MKL and oneDNN read them once, when they are loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.atomic import atomic_write
from harness.events import EventReader
from harness.provenance import code_root

PINNED_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "OMP_DYNAMIC": "FALSE",
    "MKL_DYNAMIC": "FALSE",
    # One code path on every x86 machine since 2013; MKL's COMPATIBLE would be four times slower.
    "MKL_CBWR": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTHONHASHSEED": "0",
}
"""What every worker is started with."""

_REMOVED = (
    # Settings of the caller that would change kernels or arithmetic behind the pins' back.
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DOMAIN_NUM_THREADS",
    "DNNL_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTHONOPTIMIZE",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
)
_POLL_SECONDS = 0.2


def pinned_environment(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with everything that decides numerics replaced or removed.

    Args:
        caller: Usually ``os.environ``.
    """
    environment = {name: value for name, value in caller.items() if name not in _REMOVED}
    environment.update(PINNED_ENVIRONMENT)
    # The worker starts with -P, so that a folder called "methods" in the caller's directory cannot
    # shadow ours. A checkout that is run without being installed must then be named.
    root = str(code_root())
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if root not in installed:
        old = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root if not old else os.pathsep.join([root, old])
    return environment


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended.

    Args:
        returncode: As ``subprocess``: negative is the signal that killed it.
        stopped_by_user: The user asked, and it was killed, or ended before it could listen.
        out_of_memory: The kernel killed a process of this container for memory meanwhile.
    """

    returncode: int
    stopped_by_user: bool
    out_of_memory: bool


def run_worker(
    cell_dir: Path,
    request: Mapping[str, Any],
    *,
    on_event: Callable[[Mapping[str, Any]], None],
    stop_level: Callable[[], int],
    keep_open: tuple[int, ...] = (),
) -> WorkerExit:
    """Run ``harness.worker`` on a request and wait for its end.

    Args:
        cell_dir: Receives ``request.json`` and ``worker.log``.
        request: See ``harness.worker.Worker``; ``sys_path`` is added here.
        on_event: Called with each event.
        stop_level: Polled: 0 run on, 1 ask the worker to save and stop, 2 kill it.
        keep_open: Descriptors that the worker inherits (the cell's lock: it must stay held until
            the worker, too, is gone).
    """
    request_file = cell_dir / "request.json"
    paths = [os.path.abspath(entry) for entry in sys.path]
    text = json.dumps({**request, "sys_path": paths}, indent=2, sort_keys=True) + "\n"
    atomic_write(request_file, text.encode("utf-8"))
    kills_before = _memory_kills()
    events_read, events_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    command = [sys.executable, "-P", "-m", "harness.worker", str(request_file)]
    command += ["--events-fd", str(events_write), "--lifeline-fd", str(lifeline_read)]
    with (cell_dir / "worker.log").open("ab") as log:
        log.write(f"--- attempt {request['attempt']}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=pinned_environment(os.environ),
            pass_fds=(events_write, lifeline_read, *keep_open),
            # A session of its own: Ctrl-C reaches the parent only, which asks the worker to stop.
            start_new_session=True,
        )
    os.close(events_write)
    os.close(lifeline_read)
    try:
        asked, killed = _follow(process, events_read, on_event, stop_level)
    finally:
        # Also after a normal end, for what the worker started and left; and before it is waited
        # for, while its number cannot be another's.
        _kill_group(process)
        process.wait()
        os.close(events_read)
        os.close(lifeline_write)
    # SIGTERM ends a worker that is still starting: it has nothing to save yet.
    stopped = killed or (asked and process.returncode == -signal.SIGTERM)
    return WorkerExit(process.returncode, stopped, _memory_kills() > kills_before)


def _follow(
    process: subprocess.Popen[bytes],
    events: int,
    on_event: Callable[[Mapping[str, Any]], None],
    stop_level: Callable[[], int],
) -> tuple[bool, bool]:
    """Pass events on until the worker ends; whether it was asked to stop, and whether killed."""
    reader = EventReader()
    asked = killed = False
    with selectors.DefaultSelector() as selector:
        selector.register(events, selectors.EVENT_READ)
        while True:
            # Asked before reading: what a worker wrote before its end is then always read. No end
            # of file is waited for, since what a worker leaves behind could hold the pipe open.
            ended = _has_ended(process)
            if not selector.get_map():
                time.sleep(0 if ended else _POLL_SECONDS / 4)
            elif selector.select(0 if ended else _POLL_SECONDS):
                data = os.read(events, 65536)
                if not data:
                    selector.unregister(events)
                for event in reader.feed(data):
                    on_event(event)
                ended = False
            if ended:
                return asked, killed
            level = stop_level()
            if level >= 2 and not killed:
                killed = True
                _kill_group(process)
            elif level == 1 and not asked:
                asked = True
                process.send_signal(signal.SIGTERM)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; it stays a zombie, so that its number still names its group."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the worker, if it runs, and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: only zombies are left
        os.killpg(process.pid, signal.SIGKILL)


def _memory_kills() -> int:
    """Processes that the kernel has killed for memory in this control group so far."""
    try:
        lines = Path("/sys/fs/cgroup/memory.events").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
