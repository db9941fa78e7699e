"""What ``auto-research doctor`` looks at: each function gives findings and raises nothing."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.launch import pinned_environment
from harness.provenance import code_root
from harness.tracking import resolve_tracking_uri, shown_uri
from harness.tracking_worker import sqlite_file

PACKAGE = "auto-research-harness"
PROBE_SECONDS = 60.0
STORE_SECONDS = 2.0

Status = Literal["ok", "missing", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        area: Group, for example ``"core"``.
        name: What was looked at.
        status: ``ok``; ``missing`` (an optional part does not work); ``fail`` (the core does not).
        detail: What was found.
        fix: What to type or do, empty if nothing.
    """

    area: str
    name: str
    status: Status
    detail: str
    fix: str = ""


def _pip(extra: str = "") -> str:
    """The command that installs this package with an extra, from the checkout if it is one."""
    bracket = f"[{extra}]" if extra else ""
    root = code_root()
    if (root / "pyproject.toml").is_file():
        return f"pip install -c {root / 'constraints.txt'} -e '{root}{bracket}'"
    return f"pip install '{PACKAGE}{bracket}'"


def _requirement(text: str) -> tuple[str, str, str]:
    """(name, version specifier, extra) of a requirement in package metadata."""
    body, _, marker = text.partition(";")
    match = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", body)
    extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
    name, specifier = (match.group(1), match.group(2).strip()) if match else (body.strip(), "")
    return name, specifier, extra.group(1) if extra else ""


def _installed(name: str, specifier: str) -> tuple[bool, str]:
    """Whether a distribution is there in an allowed version, and what was found."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False, "not installed"
    try:
        from packaging.specifiers import SpecifierSet

        allowed = SpecifierSet(specifier).contains(version, prereleases=True)
    except (ImportError, ValueError):
        allowed = True
    return allowed, version if allowed else f"{version}, needs {specifier}"


def packages() -> list[Finding]:
    """Core dependencies one by one, and each extra."""
    python = platform.python_version()
    old = sys.version_info < (3, 11)
    found = [
        Finding("core", "python", "fail" if old else "ok", python, "install 3.11" if old else "")
    ]
    try:
        requirements = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return [*found, Finding("core", PACKAGE, "fail", "not installed", _pip())]
    extras: dict[str, list[tuple[str, bool, str]]] = {}
    for name, specifier, extra in map(_requirement, requirements):
        works, detail = _installed(name, specifier)
        if extra:
            extras.setdefault(extra, []).append((name, works, detail))
        else:
            fix = "" if works else _pip()
            found.append(Finding("core", name, "ok" if works else "fail", detail, fix))
    for extra, parts in sorted(extras.items()):
        bad = [f"{name} {detail}" for name, works, detail in parts if not works]
        good = [f"{name} {detail}" for name, _, detail in parts if name != PACKAGE]
        detail = ", ".join(bad or good)
        found.append(
            Finding("extra", extra, "missing" if bad else "ok", detail, _pip(extra) if bad else "")
        )
    return found


def _run_probe() -> tuple[dict[str, Any] | None, str]:
    """The probe's answer, or None and why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "harness.doctor_probe"],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env=pinned_environment(os.environ),
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode == 0:
            answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return answer, ""
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return None, f"the probe did not answer ({type(error).__name__})"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return None, last[0][:300]


def numerics() -> list[Finding]:
    """Torch in a pinned process: does it import, do the pins hold, which backends compute."""
    answer, why = _run_probe()
    if answer is None:
        return [Finding("numerics", "torch", "fail", why, _pip())]
    device = answer["cuda"] or "CPU only"
    found = [Finding("numerics", "torch", "ok", f"{answer['torch']}, {device}")]
    pinned = answer["threads"] == 1 and answer["capability"] == "AVX2" and not answer["unpinned"]
    found.append(
        Finding(
            "numerics",
            "pinning",
            "ok" if pinned else "missing",
            f"{answer['threads']} thread, {answer['capability']} kernels"
            + (f", not pinned: {', '.join(answer['unpinned'])}" if answer["unpinned"] else ""),
            "" if pinned else "results are steady here; compare with other machines by tolerance",
        )
    )
    found.append(Finding("numerics", "fingerprint", "ok", answer["fingerprint"]))
    for name, result in sorted(answer["attention"].items()):
        # A machine without CUDA lacks flex by nature; the others are the core of every method.
        broken: Status = "missing" if name == "flex" else "fail"
        fix = "nothing: auto uses blockwise here" if name == "flex" else _pip()
        works = result["works"]
        found.append(
            Finding(
                "attention",
                name,
                "ok" if works else broken,
                result["detail"],
                "" if works else fix,
            )
        )
    return found


def _writable(path: Path) -> tuple[bool, str]:
    """Whether a file can be made in ``path``, or in its nearest parent if it does not exist yet."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
        free = shutil.disk_usage(place).free / 2**30
    except OSError as error:
        return False, f"{path}: {error.strerror or error}"
    will = "" if place == path.absolute() else " (will be made)"
    return True, f"{path}{will}, {free:.1f} GiB free"


def folders(places: Iterable[tuple[str, Path]]) -> list[Finding]:
    """Whether results and runs can be written.

    Args:
        places: (option that sets it, folder).
    """
    found = []
    for option, path in places:
        works, detail = _writable(path)
        fix = "" if works else f"give another folder with {option}"
        name = option.removeprefix("--")
        found.append(Finding("folders", name, "ok" if works else "fail", detail, fix))
    return found


def search_index() -> Finding:
    """Whether this Python's SQLite has FTS5, the tool store's index."""
    try:
        connection = sqlite3.connect(":memory:")
        try:
            connection.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
        finally:
            connection.close()
    except sqlite3.Error as error:
        detail = f"SQLite {sqlite3.sqlite_version}: {error}"
        return Finding(
            "search", "sqlite fts5", "fail", detail, "use a Python whose SQLite has FTS5"
        )
    return Finding("search", "sqlite fts5", "ok", f"SQLite {sqlite3.sqlite_version}")


def _check_sqlite(database: Path) -> tuple[bool, str]:
    if not database.exists():
        return _writable(database.parent)[0], "will be made by the first run"
    connection = sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=0.5)
    try:
        connection.execute("BEGIN IMMEDIATE")
        runs = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
        connection.rollback()
    finally:
        connection.close()
    return True, f"{runs} runs"


def _check_server(uri: str) -> tuple[bool, str]:
    parts = urllib.parse.urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]  # urllib would take user:password for a host's name
    address = parts._replace(netloc=host, path=f"{parts.path.rstrip('/')}/health").geturl()
    request = urllib.request.Request(address)
    if parts.username is not None:
        pair = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=STORE_SECONDS) as response:
            return True, f"the server answers ({response.status})"
    except urllib.error.HTTPError as error:
        return error.code in {401, 403}, f"the server answers {error.code} {error.reason}"


def tracking_store(flag: str | None) -> Finding:
    """Whether the MLflow store could be reached now; runs do not need it.

    Args:
        flag: ``--tracking-uri`` as given.
    """
    uri = resolve_tracking_uri(flag)
    database = sqlite_file(uri)
    fix = "nothing for runs: mirror later with auto-research track sync; or give --tracking-uri"
    try:
        if database is not None:
            works, detail = _check_sqlite(database)
        elif uri.startswith(("http://", "https://")):
            works, detail = _check_server(uri)
        elif "://" not in uri or uri.startswith("file:"):
            works, detail = _writable(Path(uri.removeprefix("file://").removeprefix("file:")))
        else:
            works, detail = True, "not checked (another kind of database)"
    except (OSError, sqlite3.Error, ValueError) as error:
        works, detail = False, str(getattr(error, "reason", None) or error)
    name = shown_uri(uri)
    return Finding("mlflow", name, "ok" if works else "missing", detail, "" if works else fix)
