"""Where a number came from: code, packages, machine and memory of a run. For run.json only.

Everything here is best effort: what cannot be found out is None, never a guess and never 0.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.packages import package_sources

PACKAGES = (
    "auto-research-harness",
    "gymnasium",
    "mlflow",
    "numpy",
    "safetensors",
    "tensordict",
    "torch",
    "transformers",
)
_COMPUTING = (
    "methods",
    "benchmarks",
    "harness/launch.py",
    "harness/seeding.py",
    "harness/worker.py",
)
_CODE = ("harness", "methods", "benchmarks", "pyproject.toml", "constraints.txt")


def code_root() -> Path:
    """The directory that holds the ``harness`` package."""
    return Path(__file__).resolve().parent.parent


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(code_root()), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the harness's own checkout, and whether its code differs from that commit.

    Returns:
        (commit, dirty); (None, None) where the code is not tracked by git: an installed package
        inside somebody else's repository must not report that repository's commit. Results and
        reports that changed do not count as dirty: they are output.
    """
    if _git("ls-files", "--error-unmatch", "harness/provenance.py") is None:
        return None, None
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--", *_CODE)
    return commit.strip() if commit else None, None if status is None else bool(status.strip())


def code_fingerprint(
    plugins: Iterable[Path] = (), names: Iterable[str] | None = None
) -> str | None:
    """SHA-256 (hex) over the sources that decide a cell's numbers, None where there are none.

    Versions of methods and benchmarks are raised by hand, and a hand forgets; this notices. Blank
    lines and lines that are comments do not count. It covers the packages ``methods`` and
    ``benchmarks``, the modules of the harness that a computation runs on, plugin files, and installed
    packages that bring methods or benchmarks, but not what these import from elsewhere.

    Args:
        plugins: Plugin files of the cell.
        names: The cell's method and benchmark: installed packages that bring neither do not count.
            All count if None.
    """
    root = code_root()
    named = [
        (path.relative_to(root).as_posix(), path)
        for part in _COMPUTING
        for path in (sorted((root / part).rglob("*.py")) if "." not in part else [root / part])
    ]
    named += [(f"plugin {number}", Path(path)) for number, path in enumerate(plugins)]
    named += [(f"package {name}", path) for name, path in package_sources(names)]
    digest = hashlib.sha256()
    try:
        for name, path in named:
            digest.update(f"\0{name}\0".encode())
            if path.suffix != ".py":  # compiled: every byte counts
                digest.update(path.read_bytes())
                continue
            for line in path.read_bytes().splitlines():
                if (text := line.strip()) and not text.startswith(b"#"):
                    digest.update(line.rstrip() + b"\n")
    except OSError:
        return None
    return digest.hexdigest()


def package_versions(names: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Installed version of each distribution, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def python_version() -> str:
    """For example ``"CPython 3.11.7"``."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def machine() -> str:
    """Operating system and architecture, for example ``"Linux-6.8.0 x86_64"``."""
    return f"{platform.system()}-{platform.release()} {platform.machine()}"


def device_name() -> str:
    """The accelerator that torch would use, or the processor with its capped instruction set."""
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    return f"cpu ({torch.backends.cpu.get_cpu_capability()})"


def peak_memory(others: Sequence[int] = ()) -> dict[str, Any]:
    """Peak resident memory of this process and of those that worked beside it.

    ``VmHWM`` starts anew when a process executes its program; ``ru_maxrss`` would be inherited from
    the parent and so could report the parent's memory as the child's.

    Args:
        others: Peak of each other process, in bytes.

    Returns:
        ``{"bytes", "scope", "processes"}``, all None where this process's own cannot be read.
    """
    own = _peak_of_this_process()
    if own is None:
        return {"bytes": None, "scope": None, "processes": None}
    scope = "worker process, resident set (VmHWM)"
    if others:
        scope = (
            "sum of VmHWM (peak resident set) of the cell's processes; pages that they share count "
            "in each, and their peaks need not coincide: an upper bound"
        )
    return {"bytes": own + sum(others), "scope": scope, "processes": 1 + len(others)}


def _peak_of_this_process() -> int | None:
    if sys.platform != "linux":
        return None
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM:")), None)


def now() -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
