"""Files of a commit, read through git's own plumbing: no checkout, no working tree, no link followed.

What stands in a repository may come from a stranger, and a ref is typed by a script that may have got
it from one: refs that look like options are refused, sizes and counts are bounded before a byte is
read, and only regular files are given.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UnreadableFileError, UserError
from harness.plain_text import visible

_TIMEOUT_SECONDS = 120
_SYMLINK, _SUBMODULE = "120000", "160000"
# Nothing may ask for a password, take a lock, or look at replacement objects of a pull request.
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1"}


@dataclass(frozen=True)
class TreeEntry:
    """One file of a tree.

    Args:
        path: Relative to the tree that was listed; undecodable bytes as surrogates.
        sha: Object id of the blob.
        size: Bytes; 0 where it is no blob.
        link: It is a symbolic link or a submodule, whose content is somewhere else.
    """

    path: str
    sha: str
    size: int
    link: bool


@dataclass(frozen=True)
class GitSource:
    """A place in a commit.

    Args:
        ref: As typed: a branch, tag, commit, or an expression such as ``HEAD~1``.
        path: Relative to the root of the repository.
        commit: The commit's full object id.
        sha: Object id of what ``path`` names.
        is_tree: It is a folder; else a file.
    """

    ref: str
    path: str
    commit: str
    sha: str
    is_tree: bool


def parse_source(text: str, default_path: str) -> tuple[str, str]:
    """``git:REF[:PATH]`` as (ref, path).

    Raises:
        UserError: If the ref is empty or looks like an option, or the path leaves the repository.
    """
    ref, _, path = text.removeprefix("git:").partition(":")
    path = path.strip("/") or default_path
    if not ref or ref.startswith("-") or not ref.isprintable():
        raise UserError(
            f"{visible(text)!r} names no commit: the ref is {visible(ref)!r}.",
            hint="Give git:REF or git:REF:PATH, where REF is a branch, a tag or a commit that does "
            "not begin with '-', for example git:main:metrics.",
        )
    if any(part in {"", ".", ".."} for part in path.split("/")) or not path.isprintable():
        raise UserError(
            f"{visible(path)!r} is no path inside a repository.",
            hint="Give it relative to the repository's root, without . and .., for example "
            "git:main:metrics.",
        )
    return ref, path


def _git(*arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", *arguments],
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            env={**os.environ, **_QUIET},
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            "git is not installed, so no git: source can be read.",
            hint="Install git, or give a directory.",
        ) from None
    except subprocess.TimeoutExpired:
        raise UnreadableFileError(
            f"git {arguments[0]} did not answer within {_TIMEOUT_SECONDS} s."
        ) from None


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    """The last line that git said about a failure."""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return visible(lines[-1] if lines else f"git ended with exit code {done.returncode}")


def resolve(ref: str, path: str) -> GitSource:
    """The object that ``path`` names in the commit ``ref``.

    Raises:
        UserError: If this is no repository, or it has no such commit or path.
    """
    inside = _git("rev-parse", "--git-dir")
    if inside.returncode:
        raise UserError(
            f"{visible(str(Path.cwd()))} is not in a git repository that can be read: "
            f"{_words(inside)}.",
            hint="Run the command inside the checkout, or give a directory.",
        )
    commit = _rev_parse(f"{ref}^{{commit}}")
    if commit is None:
        raise UserError(
            f"There is no commit {ref!r} in this repository.",
            hint="A shallow clone has one commit only: fetch the other with `git fetch --depth 1 "
            "origin main` and give git:FETCH_HEAD, or give a directory.",
        )
    sha = _rev_parse(f"{commit}:{path}")
    kind = b"" if sha is None else _git("cat-file", "-t", sha).stdout.strip()
    if sha is None or kind not in {b"tree", b"blob"}:
        raise UserError(
            f"The commit {ref!r} ({commit[:12]}) has no file or folder {path!r}.",
            hint=f"List what it has with: git ls-tree --name-only {commit[:12]}",
        )
    return GitSource(ref, path, commit, sha, kind == b"tree")


def _rev_parse(expression: str) -> str | None:
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", expression)
    return None if done.returncode else done.stdout.decode("ascii").strip()


def entries(source: GitSource) -> list[TreeEntry]:
    """All files below a folder, sorted by path.

    Raises:
        UnreadableFileError: If git cannot list them.
    """
    done = _git("ls-tree", "-r", "-z", "-l", "--full-tree", source.sha)
    if done.returncode:
        raise UnreadableFileError(f"The tree of {source.ref!r} cannot be read: {_words(done)}.")
    found = []
    for line in done.stdout.split(b"\0"):
        if line:
            facts, _, name = line.partition(b"\t")
            mode, _, sha, size = facts.decode("ascii").split()
            found.append(
                TreeEntry(
                    os.fsdecode(name),
                    sha,
                    int(size) if size.isdigit() else 0,
                    mode in {_SYMLINK, _SUBMODULE},
                )
            )
    return sorted(found, key=lambda entry: entry.path)


def size_of(sha: str) -> int:
    """Bytes of a blob."""
    return int(_git("cat-file", "-s", sha).stdout or b"0")


def read_blobs(shas: Iterable[str]) -> Mapping[str, bytes]:
    """The content of blobs, by one git process; the caller has bounded their sizes.

    Raises:
        UnreadableFileError: If git does not give one of them.
    """
    wanted = sorted(set(shas))
    if not wanted:
        return {}
    done = _git("cat-file", "--batch", data="".join(f"{sha}\n" for sha in wanted).encode("ascii"))
    found: dict[str, bytes] = {}
    position = 0
    for sha in wanted:
        end = done.stdout.find(b"\n", position)
        header = done.stdout[position:end].split()
        if end < 0 or len(header) != 3 or not header[2].isdigit():
            raise UnreadableFileError(f"git cannot read the object {sha[:12]}: {_words(done)}.")
        start = end + 1
        found[sha] = done.stdout[start : start + int(header[2])]
        position = start + int(header[2]) + 1
    return found
