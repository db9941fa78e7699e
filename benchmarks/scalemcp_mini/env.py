"""``ScaleMCPMini-v0``: find tools among hundreds, call them, answer. Gymnasium, dual control.

Importing this module registers the id; the long id ``benchmarks.scalemcp_mini.env:ScaleMCPMini-v0``
lets ``gymnasium.make`` import it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import gymnasium

from benchmarks.scalemcp_mini import actions
from benchmarks.scalemcp_mini.actions import Action, BadActionError
from benchmarks.scalemcp_mini.catalog import Catalog, MCPServer, Pair, ToolDefinition
from benchmarks.scalemcp_mini.evaluator import Evaluator
from benchmarks.scalemcp_mini.knobs import ENV_ID, SuiteConfig, stable_hash
from benchmarks.scalemcp_mini.store import SearchCache, StaleToolError, ToolStore, UnknownToolError
from benchmarks.scalemcp_mini.tasks import Hidden, Task, TaskSet, hidden
from benchmarks.scalemcp_mini.user import ScriptedUser, SharedState
from benchmarks.scalemcp_mini.words import (
    MAX_VALUES,
    NOTES,
    NUM_HANDLES,
    code_words,
    handle_name,
)
from methods.base import Split

_ECHO_WORD = re.compile(r"[a-z][a-z-]*")
Observation = dict[str, Any]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]


class _Refused(Exception):
    """An action that the state does not allow.

    Args:
        text: The observation's words.
        message: A sentence for people.
    """

    def __init__(self, text: str, message: str) -> None:
        super().__init__(message)
        self.text = text


class ScaleMCPMiniEnv(gymnasium.Env[Observation, Action]):
    """An agent with one retrieval tool answers a user's request for 1 to 5 figures.

    The request stands in the first observation and is never repeated. Each turn the agent does one
    structured action (``actions.py``): ``search`` the tool store, ``call`` a tool, ``ask_user`` for
    consent to a tool, or ``answer``, which ends the episode. Agent and scripted user act on one
    shared state; only the user's own action grants consent.

    What can go wrong, each a hash of (task seed, company, metric), so the same for every agent that
    faces the task: a tool answers "consent" until the user has consented; a catalog sync renames or
    replaces a tool just before it is called, so that its handle is stale and it must be searched
    again; the first exact searches for a tool find near misses only.

    Observation: ``{"text": words, "is_error": 0 or 1}``. The first word says what it is:
        ``need #0 company metric #1 company metric ... #n year`` the request;
        ``page ledger document*k query`` where a document is ``company metric handle notes``, in
            handle order, which says nothing about relevance;
        ``ok company metric year value ledger`` after a successful call;
        ``granted handle ledger`` after the user consented;
        ``error code [handle] ledger`` otherwise, codes as in ``words.ERROR_CODES``; ``info`` then
            holds a sentence for people under ``"message"``;
        ``done`` at the end.

    Helps for a policy with a short window, disclosed as part of the environment: a page closes with
    the query, an error and a grant repeat the handle, and every observation but the first holds the
    ledger: ``#c`` (how many values were obtained, 5 at most) and the last five values obtained,
    right or wrong ones, oldest first, one a tool. Request items are numbered from 0, so that the
    counter of a flawless episode names the next item, and ``#n`` stands before the year.

    Any action at all gives an observation; a senseless one gives ``error invalid``. The reward is 0
    until the end and then ``Evaluator``'s; at the turn limit the episode is truncated and scored as
    unanswered. The last ``info`` holds ``metrics`` (floats) and ``tier``.

    Args:
        split: ``"train"`` or ``"heldout"``.
        config: Decides the tasks; the default suite if None.
        tasks: Shared, immutable task set; made from ``config`` if None.
        render_mode: None or ``"ansi"``.

    Raises:
        ValueError: From ``reset`` if there is no such task.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as the base declares it

    def __init__(
        self,
        split: Split = "train",
        config: SuiteConfig | None = None,
        tasks: TaskSet | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._tasks = tasks if tasks is not None else TaskSet(config or SuiteConfig())
        self._difficulty = self._tasks.config.difficulty
        self._split: Split = split
        self.num_tasks = self._tasks.num_tasks(split)
        self.render_mode = render_mode
        self.action_space = actions.action_space()
        self.observation_space = actions.observation_space()
        self._stores: dict[int, ToolStore] = {}
        self._servers: dict[str, MCPServer] = {}
        self._store: ToolStore | None = None
        self._over = True
        self._last: Observation = {"text": "done", "is_error": 0}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin task ``options["task_index"]``, or a random one of the split.

        Undoes the last episode's catalog changes through the same sync that made them.

        Raises:
            ValueError: If the index is not an integer or not one of the split's.
        """
        super().reset(seed=seed)
        index = (options or {}).get("task_index")
        if index is None:
            index = int(self.np_random.integers(self.num_tasks))
        task = self._tasks.task(self._split, index)
        self._undo_catalog_changes()
        self._task: Task = task
        self._catalog: Catalog = self._tasks.catalog(task.catalog_seed)
        self._store = self._store_of(task.catalog_seed)
        self._evaluator = Evaluator(task, self._catalog)
        self._state = SharedState()
        self._user = ScriptedUser(task.pairs)
        self._hidden: dict[Pair, Hidden] = {}
        self._changes_done: dict[Pair, int] = {}
        self._misses_done: dict[Pair, int] = {}
        self._turn = 0
        self._limit = self._difficulty.turn_limit(len(task.pairs))
        self._over = False
        items = (f"#{i} {company} {metric}" for i, (company, metric) in enumerate(task.pairs))
        return self._say(f"need {' '.join(items)} #{len(task.pairs)} {task.year}"), {}

    def step(self, action: Any) -> Step:
        """Do one action; never raises, whatever ``action`` is."""
        if self._over:
            message = "the episode is over; reset() begins another"
            return self._say("error over", 1), 0.0, True, False, {"message": message}
        self._turn += 1
        info: dict[str, Any] = {}
        try:
            verb = actions.verb_of(action)
            if verb == actions.ANSWER:
                self._evaluator.saw_answer(actions.values_of(action))
                return self._finish(self._say("done"), truncated=False)
            handler = (self._search, self._call, self._ask)[verb]
            text = handler(action)
        except BadActionError as error:
            text, info["message"] = f"error invalid {self._ledger()}", str(error)
        except StaleToolError as error:
            words = error.definition.name.replace("-", " ")
            text, info["message"] = f"error stale {words} {self._ledger()}", str(error)
        except UnknownToolError as error:
            text, info["message"] = f"error unknown {self._ledger()}", str(error)
        except _Refused as error:
            text, info["message"] = f"{error.text} {self._ledger()}", str(error)
        observation = self._say(text, int(bool(info)))
        if self._turn >= self._limit:
            return self._finish(observation, truncated=True)
        return observation, 0.0, False, False, info

    def render(self) -> str | None:
        """The last observation's text in ``"ansi"`` mode."""
        return str(self._last["text"]) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the stores; closing twice is allowed."""
        for store in self._stores.values():
            store.close()
        self._stores, self._servers, self._store, self._over = {}, {}, None, True

    # -- the agent's actions -------------------------------------------------------------------

    def _search(self, action: Action) -> str:
        query = actions.query_of(action)
        words = _ECHO_WORD.findall(query.lower())[:3]
        k = self._difficulty.page_size
        wanted: Pair | None = (" ".join(words[:2]), words[2]) if len(words) == 3 else None
        if wanted not in self._catalog.tools:
            wanted = None
        found = list(self._the_store.search(query, k + 1))
        if wanted is not None and self._misses_done.get(wanted, 0) < self._of(wanted).misses:
            self._misses_done[wanted] = self._misses_done.get(wanted, 0) + 1
            found = [tool for tool in found if tool.pair != wanted]
        page = sorted(found[:k], key=lambda tool: tool.name)
        self._evaluator.saw_search(wanted, any(tool.pair == wanted for tool in page))
        return " ".join(("page", self._ledger(), *(tool.document for tool in page), *words))

    def _call(self, action: Action) -> str:
        name, pair, obtained = "", None, False
        year = 0
        try:
            name, year = actions.tool_of(action), actions.year_of(action)
            tool = self._resolve(name)
            pair = tool.pair
            if self._changes_done.get(pair, 0) < self._of(pair).changes:
                self._change_handle(tool)
                tool = self._the_store.lookup(name)  # raises: the handle is stale now
            if self._of(pair).needs_consent and pair not in self._state.consents:
                raise _Refused(
                    f"error consent {name.replace('-', ' ')}",
                    f"tool {name} needs the user's consent; ask the user, then call again",
                )
            obtained = True
            value = self._catalog.value(*pair, year)
            self._state.record(pair, value)
            return f"ok {tool.company} {tool.metric} {year} {code_words(value)} {self._ledger()}"
        except StaleToolError as error:
            pair = error.definition.pair
            raise
        finally:
            self._evaluator.saw_call(pair, year, obtained)

    def _ask(self, action: Action) -> str:
        self._evaluator.saw_question()
        name = actions.tool_of(action)
        tool = self._resolve(name)
        words = name.replace("-", " ")
        if self._user.asked_about(self._state, tool.pair):
            return f"granted {words} {self._ledger()}"
        raise _Refused(
            f"error refused {words}", f"the user did not ask for what tool {name} measures"
        )

    # -- the world -----------------------------------------------------------------------------

    @property
    def _the_store(self) -> ToolStore:
        if self._store is None:
            raise RuntimeError("the environment is closed or was never reset; call reset() first")
        return self._store

    def _resolve(self, name: str) -> ToolDefinition:
        return self._the_store.lookup(name)

    def _of(self, pair: Pair) -> Hidden:
        found = self._hidden.get(pair)
        if found is None:
            found = self._hidden[pair] = hidden(self._task.seed, pair, self._difficulty)
        return found

    def _change_handle(self, tool: ToolDefinition) -> None:
        """The tool's server publishes a new handle and the store syncs, before the call arrives."""
        pair = tool.pair
        generation = self._changes_done.get(pair, 0) + 1
        self._changes_done[pair] = generation
        server = self._servers.get(tool.company)
        if server is None:
            server = self._servers[tool.company] = self._catalog.server(tool.company)
        name = self._fresh_handle(pair, generation)
        if self._of(pair).replaced:
            pick = stable_hash("notes", self._task.seed, *pair, generation)
            notes = tuple(NOTES[(pick + i) % len(NOTES)] for i in range(len(tool.notes)))
            server.replace_tool(tool.metric, name, notes)
        else:
            server.rename(tool.metric, name)
        self._the_store.sync(server)

    def _fresh_handle(self, pair: Pair, generation: int) -> str:
        """A handle that neither the catalog nor this episode has used."""
        start = stable_hash("handle", self._task.seed, *pair, generation)
        for step in range(NUM_HANDLES):
            name = handle_name((start + step) % NUM_HANDLES)
            if name not in self._catalog.handles and not self._the_store.knows(name):
                return name
        raise RuntimeError("no free handle is left; the catalog is too large")  # pragma: no cover

    def _undo_catalog_changes(self) -> None:
        if self._servers and self._store is not None:
            self._store.sync_all(self._catalog.server(name) for name in self._servers)
            self._store.forget_withdrawn()
        self._servers = {}

    def _store_of(self, catalog_seed: int) -> ToolStore:
        store = self._stores.get(catalog_seed)
        if store is None:
            snapshot, cache = _pristine(self._tasks, catalog_seed)
            store = self._stores[catalog_seed] = ToolStore(cache=cache)
            if snapshot is None:
                catalog = self._tasks.catalog(catalog_seed)
                store.sync_all(catalog.server(name) for name in catalog.companies)
            else:
                store.restore(snapshot)
        return store

    def _ledger(self) -> str:
        values = list(self._state.ledger.values())[-MAX_VALUES:]
        return " ".join((f"#{len(values)}", *map(code_words, values)))

    def _say(self, text: str, is_error: int = 0) -> Observation:
        self._last = {"text": text, "is_error": is_error}
        return self._last

    def _finish(self, observation: Observation, *, truncated: bool) -> Step:
        self._over = True
        syncs = sum(self._changes_done.values())
        metrics = self._evaluator.metrics(self._turn, syncs)
        info = {"metrics": metrics, "tier": self._task.tier}
        return observation, metrics["reward"], not truncated, truncated, info


@lru_cache(maxsize=64)
def _pristine(tasks: TaskSet, catalog_seed: int) -> tuple[bytes | None, SearchCache]:
    """A synced store as bytes, and the search cache shared by its copies (a memo: same key, same
    answer), so that making another environment costs a copy instead of an indexing run.
    """
    catalog, store = tasks.catalog(catalog_seed), ToolStore()
    store.sync_all(catalog.server(name) for name in catalog.companies)
    snapshot = store.snapshot()
    store.close()
    return snapshot, {}


if ENV_ID not in gymnasium.registry:
    gymnasium.register(id=ENV_ID, entry_point=f"{__name__}:ScaleMCPMiniEnv")
