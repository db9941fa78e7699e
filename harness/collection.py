"""Sets of metrics documents: all that a folder, a file or a commit holds, read strictly.

Nothing that is wrong with a file stops the others from being read: it becomes a :class:`Problem`, and
the command decides. A folder's symbolic links are not followed (a pull request could point one at the
very baseline that it is compared with), names that begin with a dot are skipped, and only ``*.json``
is looked at.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from harness import git_tree, strict_json
from harness.documents import NewerSchemaError, ResultsError, hint_for, validate_document
from harness.errors import UnreadableFileError, UserError
from harness.plain_text import visible
from harness.spec import MAX_SEED

Key = tuple[str, str, int]
"""(method, benchmark, seed) of a cell."""

GIT_DEFAULT_PATH = "metrics"
MAX_FILES = 50_000
MAX_TOTAL_BYTES = 1024**3
_MAX_DEPTH = 64
_LINK = "it is a symbolic link, which is not followed; put the file itself there"


@dataclass(frozen=True)
class Problem:
    """A file that cannot be used.

    Args:
        path: As shown to people: nothing in it acts on a terminal.
        reason: What is wrong, in a sentence without a full stop; may quote the file, unescaped.
        newer: A later version of this package wrote it.
    """

    path: str
    reason: str
    newer: bool = False


@dataclass(frozen=True)
class Collection:
    """What a source holds.

    Args:
        where: The source as shown to people.
        documents: Validated metrics documents, sorted by key. They may be shared: do not change them.
        problems: What could not be used, sorted by path.
        files: Shown path of each document.
    """

    where: str
    documents: Mapping[Key, dict[str, Any]]
    problems: Sequence[Problem]
    files: Mapping[Key, str]


@dataclass(frozen=True)
class _Found:
    """A file that should hold a metrics document.

    Args:
        shown: Its path for people.
        relative: Its path inside a folder, or None where the file itself is the source: such a file
            may have any name.
        read: Gives the content.
    """

    shown: str
    relative: PurePosixPath | None
    read: Callable[[], bytes]


def cell_name(key: Key) -> str:
    """``<method>/<benchmark>-seed<N>``: how a cell is called on the command line."""
    method, benchmark, seed = key
    return f"{method}/{benchmark}-seed{seed}"


def load_collection(
    source: str | Path, *, parsed: dict[bytes, dict[str, Any]] | None = None
) -> Collection:
    """Read all metrics documents of a source.

    Args:
        source: A directory, one file, or ``git:REF[:PATH]`` (PATH is ``metrics`` if not given).
        parsed: Documents by their bytes, filled here. Give the same mapping to two calls: a baseline
            and its candidate mostly hold the same bytes.

    Raises:
        UserError: If there is no such source, or it names no commit.
        UnreadableFileError: If it holds more than can be metrics.
    """
    found = list(_in_git(str(source)) if str(source).startswith("git:") else _on_disk(Path(source)))
    return _collect(visible(str(source)), found, {} if parsed is None else parsed)


def _collect(
    where: str, found: Sequence[_Found | Problem], parsed: dict[bytes, dict[str, Any]]
) -> Collection:
    problems = [item for item in found if isinstance(item, Problem)]
    documents: dict[Key, dict[str, Any]] = {}
    files: dict[Key, str] = {}
    total = 0
    for item in found:
        if isinstance(item, Problem):
            continue
        try:
            data = item.read()
            total += len(data)
            if total > MAX_TOTAL_BYTES:
                raise _too_much(where, f"more than {MAX_TOTAL_BYTES} bytes of JSON")
            if data not in parsed:
                parsed[data] = _parse(data)
            key = _key(parsed[data], item.relative)
            if key in documents:
                raise _Unusable(f"it holds the same cell as {files[key]}")
        except OSError as error:
            problems.append(Problem(item.shown, _os_reason(error)))
        except strict_json.StrictJSONError as error:
            problems.append(Problem(item.shown, str(error)))
        except ResultsError as error:
            problems.append(Problem(item.shown, error.reason, isinstance(error, NewerSchemaError)))
        else:
            documents[key] = parsed[data]
            files[key] = item.shown
    return Collection(
        where,
        {key: documents[key] for key in sorted(documents)},
        sorted(problems, key=lambda problem: problem.path),
        {key: files[key] for key in sorted(files)},
    )


class _Unusable(ResultsError):
    """A document that is valid by itself and cannot stand where it stands."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, reason, hint_for("metrics"))


def _parse(data: bytes) -> dict[str, Any]:
    document = strict_json.loads(strict_json.decode(data))
    validate_document(document, "metrics", None, reading=True)
    assert isinstance(document, dict)
    if not _is_shallow(document["method"]["config"]):
        raise _Unusable("its method.config is nested too deeply")
    return document


def _is_shallow(value: Any) -> bool:
    """Whether a config can be walked recursively; the schema bounds the rest of a document."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not inner:
            return True
        level = inner
    return False


def _key(document: Mapping[str, Any], relative: PurePosixPath | None) -> Key:
    """The document's cell, which must be the one that its path names."""
    seed = document["seed"]
    if not 0 <= seed <= MAX_SEED:
        raise _Unusable(f"its seed is outside 0 to {MAX_SEED}")
    key = (document["method"]["name"], document["benchmark"]["name"], int(seed))
    if relative is not None:
        expected = f"{cell_name(key)}.json"
        # A folder of one method is a source, too: its own name is then not part of the path.
        if str(relative) not in {expected, expected.removeprefix(f"{key[0]}/")} and not str(
            relative
        ).endswith(f"/{expected}"):
            raise _Unusable(
                f"its name disagrees with its content, which belongs into {visible(expected)}"
            )
    return key


def _os_reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it cannot be read: it is a symbolic link that is not followed, or leads to itself"
    return f"it cannot be read: {error.strerror or error}"


def _too_much(where: str, what: str) -> UnreadableFileError:
    return UnreadableFileError(
        f"{where} holds {what}, which cannot be metrics.",
        hint="Give the folder that agent-eval and reproduce write to with --metrics-dir.",
    )


# --- Where files come from -----------------------------------------------------------------------


def _on_disk(source: Path) -> Iterator[_Found | Problem]:
    shown = visible(str(source))
    try:
        mode = source.stat().st_mode  # a link that was typed is followed; those inside are not
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"There is no {shown}.",
            hint="Give a directory of metrics, one metrics file, or git:REF[:PATH].",
        ) from None
    except (OSError, ValueError) as error:
        reason = _os_reason(error) if isinstance(error, OSError) else str(error)
        yield Problem(shown, reason)
        return
    if stat.S_ISDIR(mode):
        yield from _in_directory(source)
    else:
        yield _Found(shown, None, lambda: strict_json.read_bytes(source))


def _in_directory(root: Path) -> Iterator[_Found | Problem]:
    count = 0
    pending = [root]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(directory) as listing:
                items = sorted(listing, key=lambda item: item.name)
        except OSError as error:
            yield Problem(visible(str(directory)), _os_reason(error))
            continue
        for item in items:
            path = Path(item.path)
            is_json = item.name.endswith(".json")
            if item.name.startswith("."):
                continue
            count += 1
            if count > MAX_FILES:
                raise _too_much(visible(str(root)), f"more than {MAX_FILES} files")
            if item.is_symlink():
                # What is no JSON file would not be looked at; a link to a folder would.
                if is_json or path.is_dir():
                    yield Problem(visible(str(path)), _LINK)
            elif is_json:
                relative = PurePosixPath(path.relative_to(root).as_posix())
                yield _Found(visible(str(path)), relative, _reader(path))
            elif item.is_dir(follow_symlinks=False):
                pending.append(path)


def _reader(path: Path) -> Callable[[], bytes]:
    return lambda: strict_json.read_bytes(path, follow=False)


def _in_git(text: str) -> Iterator[_Found | Problem]:
    ref, path = git_tree.parse_source(text, GIT_DEFAULT_PATH)
    source = git_tree.resolve(ref, path)
    if not source.is_tree:
        if git_tree.size_of(source.sha) > strict_json.MAX_BYTES:
            yield Problem(visible(text), strict_json.too_large())
        else:
            yield _Found(visible(text), None, lambda: git_tree.read_blobs([source.sha])[source.sha])
        return
    wanted = []
    for entry in git_tree.entries(source):
        shown = visible(f"git:{ref}:{path}/{entry.path}")
        name = PurePosixPath(entry.path)
        if not entry.path.endswith(".json") or any(part.startswith(".") for part in name.parts):
            continue
        if entry.link:
            yield Problem(shown, _LINK)
        elif entry.size > strict_json.MAX_BYTES:
            yield Problem(shown, strict_json.too_large())
        else:
            wanted.append((shown, name, entry))
    total = sum(entry.size for _, _, entry in wanted)
    if len(wanted) > MAX_FILES or total > MAX_TOTAL_BYTES:
        raise _too_much(visible(text), f"{len(wanted)} JSON files of {total} bytes")
    blobs = git_tree.read_blobs(entry.sha for _, _, entry in wanted)
    for shown, name, entry in wanted:
        yield _Found(shown, name, lambda sha=entry.sha: blobs[sha])  # type: ignore[misc]
