"""Store: sync by hash, retrieval, stale handles, hostile queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scalemcp_mini.catalog import Catalog, build_catalog
from benchmarks.scalemcp_mini.store import (
    DuplicateToolError,
    StaleToolError,
    SyncCounts,
    ToolStore,
    UnknownToolError,
)


def _filled(catalog: Catalog, path: Path | None = None) -> ToolStore:
    store = ToolStore(path)
    store.sync_all(catalog.server(name) for name in catalog.companies)
    return store


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return build_catalog(97, 40, 8)


@pytest.fixture(scope="module")
def shared_store(catalog: Catalog) -> ToolStore:
    return _filled(catalog)


def test_five_thousand_tools_sync_once_and_then_nothing() -> None:
    catalog = build_catalog(3, 625, 8)
    store = ToolStore()
    servers = [catalog.server(name) for name in catalog.companies]
    assert store.sync_all(servers) == SyncCounts(created=5000)
    before = store._db.total_changes
    assert store.sync_all(servers) == SyncCounts(unchanged=5000)
    assert store._db.total_changes == before
    assert len(store) == 5000
    for pair in list(catalog.tools)[::250]:
        assert store.search(" ".join(pair), 4)[0].pair == pair


def test_every_tool_is_found_first_among_near_misses(
    catalog: Catalog, shared_store: ToolStore
) -> None:
    for pair in catalog.tools:
        first, *others = shared_store.search(" ".join(pair), 5)
        assert first.pair == pair
        assert len(others) == 4
        words = set(" ".join(pair).split())
        assert all(len(words & set(" ".join(t.pair).split())) >= 1 for t in others)


def test_sync_creates_updates_deletes_and_counts(catalog: Catalog) -> None:
    store = _filled(catalog)
    server = catalog.server(catalog.companies[0])
    first, second, third, *rest = server.list_tools()
    server.rename(first.metric, "zz-01")
    server.replace_tool(second.metric, second.name, ("restated", "filed"))
    del server.tools[third.metric]
    counts = store.sync(server)
    assert counts == SyncCounts(created=1, updated=1, deleted=2, unchanged=len(rest))
    assert store.lookup("zz-01").pair == first.pair
    assert store.lookup(second.name).notes == ("restated", "filed")
    for gone in (first, third):
        with pytest.raises(StaleToolError, match=r"stale.*search again") as caught:
            store.lookup(gone.name)
        assert caught.value.definition == gone
    assert third.pair not in [t.pair for t in store.search(" ".join(third.pair), 5)]
    assert store.sync(server) == SyncCounts(unchanged=len(rest) + 2)


def test_undoing_a_change_by_sync_restores_answers_and_state(catalog: Catalog) -> None:
    store = _filled(catalog)
    queries = [" ".join(pair) for pair in list(catalog.tools)[:40]] + ["harbor", "net income"]
    state, before = store.state, [store._search(q, 5) for q in queries]
    for company in catalog.companies[:3]:
        server = catalog.server(company)
        for number, tool in enumerate(server.list_tools()):
            server.replace_tool(tool.metric, f"z{company[0]}-{company[-1]}{number}", ("filed",))
        store.sync(server)
    assert store.state != state
    store.sync_all(catalog.server(company) for company in catalog.companies[:3])
    assert store.state == state
    assert [store._search(q, 5) for q in queries] == before


def test_a_cached_answer_is_not_given_after_a_change(catalog: Catalog) -> None:
    store = _filled(catalog)
    pair = next(iter(catalog.tools))
    old = store.search(" ".join(pair), 4)[0]
    server = catalog.server(pair[0])
    server.rename(pair[1], "zz-02")
    store.sync(server)
    new = store.search(" ".join(pair), 4)[0]
    assert (old.pair, new.pair, new.name) == (pair, pair, "zz-02")


def test_a_file_store_reopens_in_step(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "tools.db"
    store = _filled(catalog, path)
    pair = next(iter(catalog.tools))
    state, found = store.state, store.search(" ".join(pair), 4)
    store.close()
    again = ToolStore(path)
    assert (again.state, again.search(" ".join(pair), 4)) == (state, found)
    counts = again.sync_all(catalog.server(name) for name in catalog.companies)
    assert counts == SyncCounts(unchanged=320)


def test_a_failed_sync_changes_nothing(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _filled(catalog)
    server = catalog.server(catalog.companies[0])
    tool = server.list_tools()[0]
    server.rename(tool.metric, "zz-03")

    def broken(_: object) -> None:
        raise RuntimeError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_create", broken)
        with pytest.raises(RuntimeError, match="disk full"):
            store.sync(server)
    assert store.lookup(tool.name) == tool
    assert store.sync(server).created == 1


def _everything(store: ToolStore) -> list[object]:
    tables = ("tools", "withdrawn", "tools_fts")
    return [store.state, *(store._db.execute(f"SELECT * FROM {t}").fetchall() for t in tables)]


@pytest.mark.parametrize("whose", ["its own", "another server's"])
def test_a_handle_listed_twice_is_refused_whole(catalog: Catalog, whose: str) -> None:
    """Neither tool is dropped silently, and the sync's other changes are not applied either."""
    store = _filled(catalog)
    before = _everything(store)
    server, other = (catalog.server(name) for name in catalog.companies[:2])
    first, second, third, *_ = server.list_tools()
    taken = second if whose == "its own" else other.list_tools()[0]
    server.rename(first.metric, taken.name)
    server.replace_tool(third.metric, "zz-04", ("restated",))
    words = (
        f"{server.name!r} lists the tool name {taken.name!r} more than once.*Rename all but one"
        if whose == "its own"
        else f"{server.name!r} lists the tool name {taken.name!r}, which server {other.name!r} has"
    )
    with pytest.raises(DuplicateToolError, match=words) as caught:
        store.sync(server)
    assert (caught.value.name, caught.value.server) == (taken.name, server.name)
    assert caught.value.owner == (server.name if whose == "its own" else other.name)
    assert _everything(store) == before
    server.rename(first.metric, "zz-05")
    assert store.sync(server).created == 2


def test_a_handle_moves_once_its_owner_has_given_it_up(catalog: Catalog) -> None:
    """As the error's message says: sync the old owner first."""
    store = _filled(catalog)
    giver, taker = (catalog.server(name) for name in catalog.companies[:2])
    tool, own = giver.list_tools()[0], taker.list_tools()[0]
    giver.rename(tool.metric, "zz-06")
    taker.rename(own.metric, tool.name)
    with pytest.raises(DuplicateToolError, match=f"sync {giver.name!r} first"):
        store.sync(taker)
    store.sync_all([giver, taker])
    assert store.lookup(tool.name).pair == own.pair


def test_an_unknown_handle_says_what_to_do(shared_store: ToolStore) -> None:
    with pytest.raises(UnknownToolError, match="search for a tool"):
        shared_store.lookup("'; DROP TABLE tools; --")
    assert len(shared_store) == 320


@pytest.mark.parametrize(
    "query",
    ["", "   ", '"', '""', "'", "*", "a*", "NEAR(", "AND OR NOT", "company:bank", "bank -retail",
     "(bank", "bank)", "^bank", '"; DROP TABLE tools; --', "\x00bank", "{bank}", "bank" * 500],
)  # fmt: skip
def test_hostile_queries_find_or_find_nothing(shared_store: ToolStore, query: str) -> None:
    assert len(shared_store.search(query, 4)) <= 4
    assert len(shared_store) == 320


@given(st.text(max_size=60))
def test_any_text_is_a_safe_query(shared_store: ToolStore, query: str) -> None:
    found = shared_store.search(query, 4)
    assert len(found) == len({tool.name for tool in found}) <= 4


def test_a_quoted_operator_is_a_word(catalog: Catalog, shared_store: ToolStore) -> None:
    pair = next(iter(catalog.tools))
    plain = shared_store.search(" ".join(pair), 4)
    assert shared_store.search(f'"{pair[0]}" {pair[1]}', 4) == plain
