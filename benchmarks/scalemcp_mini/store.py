"""The tool store: a lexical index over MCP tools that keeps itself in step with the servers.

ScaleMCP's auto-sync (arXiv 2505.06416, section 3.1): the store hashes every definition a server
lists and creates, updates or deletes what differs; the MCP servers are the single source of truth.
Retrieval is sqlite FTS5 with bm25.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.scalemcp_mini.catalog import MCPServer, ToolDefinition

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tools(
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, server TEXT NOT NULL,
    digest TEXT NOT NULL, definition TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS tools_server ON tools(server);
CREATE TABLE IF NOT EXISTS withdrawn(name TEXT PRIMARY KEY, definition TEXT NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS tools_fts USING fts5(company, metric, description);
"""
# Column weights: a shared metric name counts nearly as much as a shared company word, so that a
# page mixes both kinds of near miss. Equal ranks are ordered by digest: rowids depend on history,
# and handles would favour low ones, so that the tool searched for came last on a sorted page.
_SEARCH = """
SELECT t.definition FROM tools_fts JOIN tools t ON t.id = tools_fts.rowid
WHERE tools_fts MATCH ? ORDER BY bm25(tools_fts, 1.0, 1.0, 0.1), t.digest LIMIT ?
"""
_WORD = re.compile(r"\w+")
_MAX_QUERY_WORDS = 16
_MAX_CACHED = 20_000


class UnknownToolError(LookupError):
    """No server ever listed this handle."""


class StaleToolError(LookupError):
    """A server has withdrawn or renamed this handle since it was listed.

    Args:
        name: The handle.
        definition: What it was.
    """

    def __init__(self, name: str, definition: ToolDefinition) -> None:
        super().__init__(
            f"tool {name} is stale: its server withdrew or renamed it; search again for its handle"
        )
        self.definition = definition


class DuplicateToolError(ValueError):
    """Two listed tools have one handle, so that a call could mean either.

    Args:
        name: The handle.
        server: Who lists it.
        owner: Who lists it already; the same as ``server`` when that lists it twice.
    """

    def __init__(self, name: str, server: str, owner: str) -> None:
        super().__init__(
            f"server {server!r} lists the tool name {name!r} more than once; a name must be unique. "
            "Rename all but one."
            if server == owner
            else f"server {server!r} lists the tool name {name!r}, which server {owner!r} has "
            f"already; a name must be unique over all servers. Rename one of them, or, if "
            f"{owner!r} has withdrawn it, sync {owner!r} first."
        )
        self.name, self.server, self.owner = name, server, owner


@dataclass(frozen=True, slots=True)
class SyncCounts:
    """What one sync did, in tools."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    def __add__(self, other: SyncCounts) -> SyncCounts:
        return SyncCounts(
            self.created + other.created,
            self.updated + other.updated,
            self.deleted + other.deleted,
            self.unchanged + other.unchanged,
        )


SearchCache = dict[tuple[str, int, int], tuple[ToolDefinition, ...]]


class ToolStore:
    """An index of tools, in memory or in a file.

    Args:
        path: Database file; None for memory.
        cache: Answers of earlier searches, keyed by (query, k, state). An answer depends on nothing
            else, so stores may share one.
    """

    def __init__(self, path: Path | None = None, cache: SearchCache | None = None) -> None:
        self._db = sqlite3.connect(
            ":memory:" if path is None else path, isolation_level=None, check_same_thread=False
        )
        self._db.executescript(_SCHEMA)
        self._cache: SearchCache = {} if cache is None else cache
        self.state = 0
        self._read_state()

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM tools").fetchone()[0])

    def snapshot(self) -> bytes | None:
        """The database as bytes for ``restore``; None where this sqlite build cannot do that."""
        serialize = getattr(self._db, "serialize", None)
        return None if serialize is None else bytes(serialize())

    def restore(self, snapshot: bytes) -> None:
        """Replace everything by a ``snapshot`` of another store."""
        self._db.deserialize(snapshot)
        self._db.execute("PRAGMA cache_size = -32")  # KiB; the database is in memory anyway
        self._read_state()

    def _read_state(self) -> None:
        self.state = 0
        for (digest,) in self._db.execute("SELECT digest FROM tools"):
            self.state ^= int(digest[:16], 16)

    def close(self) -> None:
        """Close the database; closing twice is allowed."""
        self._db.close()

    def sync(self, server: MCPServer) -> SyncCounts:
        """Make the index list what ``server`` lists now, and say what that took.

        Hashes decide: a second sync of an unchanged server writes nothing. All or nothing: where it
        raises, the index is as it was.

        Raises:
            DuplicateToolError: If the server lists a handle twice, or one that another server has.
        """
        rows = self._db.execute(
            "SELECT name, digest FROM tools WHERE server = ?", (server.name,)
        ).fetchall()
        known = dict(rows)
        listed: dict[str, ToolDefinition] = {}
        for tool in server.list_tools():
            if tool.name in listed:
                raise DuplicateToolError(tool.name, server.name, server.name)
            listed[tool.name] = tool
        gone = [name for name in known if name not in listed]
        new = [tool for name, tool in listed.items() if name not in known]
        changed = [t for n, t in listed.items() if n in known and known[n] != t.digest]
        self._require_free(new, server.name)
        if gone or new or changed:
            self._db.execute("BEGIN")
            try:
                self._delete(gone)
                self._update(changed)
                self._create(new)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            for digest in [known[name] for name in gone] + [known[t.name] for t in changed]:
                self.state ^= int(digest[:16], 16)
            for tool in new + changed:
                self.state ^= int(tool.digest[:16], 16)
        return SyncCounts(len(new), len(changed), len(gone), len(listed) - len(new) - len(changed))

    def sync_all(self, servers: Iterable[MCPServer]) -> SyncCounts:
        """``sync`` each server in turn; returns the sum.

        Raises:
            DuplicateToolError: As ``sync``; the servers before the one named stay synced.
        """
        total = SyncCounts()
        for server in servers:
            total += self.sync(server)
        return total

    def search(self, query: str, k: int) -> tuple[ToolDefinition, ...]:
        """The ``k`` best tools for the words of ``query``, best first (bm25); any string is safe.

        Only word characters reach FTS5, each word quoted, so no query syntax can be injected. A
        query without words finds nothing.
        """
        key = (query, k, self.state)
        found = self._cache.get(key)
        if found is None:
            found = self._search(query, k)
            if len(self._cache) < _MAX_CACHED:
                self._cache[key] = found
        return found

    def lookup(self, name: str) -> ToolDefinition:
        """The tool that a handle means now.

        Raises:
            StaleToolError: If the handle was withdrawn or renamed.
            UnknownToolError: If no tool ever had it.
        """
        row = self._db.execute("SELECT definition FROM tools WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return _parse(row[0])
        row = self._db.execute(
            "SELECT definition FROM withdrawn WHERE name = ?", (name,)
        ).fetchone()
        if row is not None:
            raise StaleToolError(name, _parse(row[0]))
        raise UnknownToolError(f"no tool {name!r} is listed; search for a tool and use its handle")

    def knows(self, name: str) -> bool:
        """Whether a handle is listed or was listed."""
        sql = "SELECT 1 FROM tools WHERE name = ? UNION SELECT 1 FROM withdrawn WHERE name = ?"
        return self._db.execute(sql, (name, name)).fetchone() is not None

    def forget_withdrawn(self) -> None:
        """Drop the memory of withdrawn handles (between episodes)."""
        self._db.execute("DELETE FROM withdrawn")

    def _search(self, query: str, k: int) -> tuple[ToolDefinition, ...]:
        words = _WORD.findall(query.lower())[:_MAX_QUERY_WORDS]
        if not words:
            return ()
        match = " OR ".join(f'"{word}"' for word in words)
        return tuple(_parse(text) for (text,) in self._db.execute(_SEARCH, (match, k)))

    def _require_free(self, tools: list[ToolDefinition], server: str) -> None:
        for tool in tools:
            row = self._db.execute(
                "SELECT server FROM tools WHERE name = ?", (tool.name,)
            ).fetchone()
            if row is not None:
                raise DuplicateToolError(tool.name, server, row[0])

    def _delete(self, names: list[str]) -> None:
        for name in names:
            row = self._db.execute(
                "SELECT id, definition FROM tools WHERE name = ?", (name,)
            ).fetchone()
            self._db.execute("DELETE FROM tools_fts WHERE rowid = ?", (row[0],))
            self._db.execute("DELETE FROM tools WHERE id = ?", (row[0],))
            self._db.execute("INSERT OR REPLACE INTO withdrawn VALUES (?, ?)", (name, row[1]))

    def _update(self, tools: list[ToolDefinition]) -> None:
        for tool in tools:
            (row_id,) = self._db.execute(
                "SELECT id FROM tools WHERE name = ?", (tool.name,)
            ).fetchone()
            self._db.execute(
                "UPDATE tools SET digest = ?, definition = ? WHERE id = ?",
                (tool.digest, tool.canonical, row_id),
            )
            self._db.execute(
                "UPDATE tools_fts SET company = ?, metric = ?, description = ? WHERE rowid = ?",
                (*_columns(tool), row_id),
            )

    def _create(self, tools: list[ToolDefinition]) -> None:
        for tool in tools:
            cursor = self._db.execute(
                "INSERT INTO tools(name, server, digest, definition) VALUES (?, ?, ?, ?)",
                (tool.name, tool.company, tool.digest, tool.canonical),
            )
            self._db.execute(
                "INSERT INTO tools_fts(rowid, company, metric, description) VALUES (?, ?, ?, ?)",
                (cursor.lastrowid, *_columns(tool)),
            )
            self._db.execute("DELETE FROM withdrawn WHERE name = ?", (tool.name,))


@lru_cache(maxsize=2**16)
def _parse(definition: str) -> ToolDefinition:
    """Stored JSON as an object; immutable, so stores of one process share it."""
    return ToolDefinition.from_mcp(json.loads(definition))


def _columns(tool: ToolDefinition) -> tuple[str, str, str]:
    return tool.company, tool.metric.replace("-", " "), str(tool.as_mcp()["description"])
