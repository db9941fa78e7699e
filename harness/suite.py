"""Suites: which cells a ``reproduce`` runs, as a TOML file.

::

    description = "One sentence."
    methods = ["sinkflex-rl", "no-sink"]       # registered names, or variants defined below
    benchmarks = ["scalemcp-mini"]
    seeds = [42, 43, 44]

    [budget.scalemcp-mini]                     # the benchmark's defaults if not given
    episodes = 120
    updates = 120

    [[override]]                               # for the cells that match method, benchmark, seed
    benchmark = "memory-sweep"
    seeds = [42]                               # only these seeds of the suite's
    updates = 0                                # another budget
    # skip = true                              # or none of them

    [variants.small]                           # see harness.variants
    method = "sinkflex-rl"
    [variants.small.config.supervised]
    steps = 60

Every key is checked: an unknown one is an error that names it, its file and the nearest known key.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UnreadableFileError, UserError
from harness.provenance import code_root
from harness.spec import MAX_SEED
from harness.variants import Variant

FOLDER = "suites"
MAX_BYTES = 1024**2
_TOP = ("description", "methods", "benchmarks", "seeds", "budget", "override", "variants")
_BUDGET = ("episodes", "updates")
_SELECT = ("method", "benchmark", "seed")
_OVERRIDE = (*_SELECT, "seeds", *_BUDGET, "skip")
_VARIANT = ("method", "config")


@dataclass(frozen=True)
class Override:
    """What differs for the cells that it matches; None matches all, or changes nothing."""

    method: str | None = None
    benchmark: str | None = None
    seed: int | None = None
    seeds: tuple[int, ...] | None = None
    episodes: int | None = None
    updates: int | None = None
    skip: bool = False

    def matches(self, method: str, benchmark: str, seed: int) -> bool:
        """Whether it speaks of this cell."""
        return (
            self.method in {None, method}
            and self.benchmark in {None, benchmark}
            and self.seed in {None, seed}
        )


@dataclass(frozen=True)
class SuiteCell:
    """One cell as a suite names it; a budget of None is the benchmark's default."""

    method: str
    benchmark: str
    seed: int
    episodes: int | None
    updates: int | None


@dataclass(frozen=True)
class Suite:
    """A validated suite file.

    Args:
        name: The file's stem.
        path: The file.
        description: One sentence.
        methods: Names, in the order given.
        benchmarks: Names.
        seeds: Seeds.
        budgets: Benchmark -> (episodes, updates).
        overrides: In order; later ones win.
        variants: Methods that the suite defines.
    """

    name: str
    path: Path
    description: str
    methods: tuple[str, ...]
    benchmarks: tuple[str, ...]
    seeds: tuple[int, ...]
    budgets: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    overrides: Sequence[Override] = ()
    variants: Sequence[Variant] = ()

    def cells(self) -> list[SuiteCell]:
        """All cells: by seed, then benchmark, then method, so that a cut-off run has whole seeds."""
        found = []
        for seed in self.seeds:
            for benchmark in self.benchmarks:
                for method in self.methods:
                    cell = self._cell(method, benchmark, seed)
                    if cell is not None:
                        found.append(cell)
        return found

    def _cell(self, method: str, benchmark: str, seed: int) -> SuiteCell | None:
        episodes, updates = self.budgets.get(benchmark, (None, None))
        wanted = True
        for override in self.overrides:
            if not override.matches(method, benchmark, seed):
                continue
            wanted = not override.skip and (override.seeds is None or seed in override.seeds)
            episodes = episodes if override.episodes is None else override.episodes
            updates = updates if override.updates is None else override.updates
        return SuiteCell(method, benchmark, seed, episodes, updates) if wanted else None


def load_suite(name: str) -> Suite:
    """Read a suite by name (``suites/<name>.toml`` here, else the one that is shipped) or by path.

    Raises:
        UserError: If there is none, or a key is unknown or has a value that is not allowed.
        UnreadableFileError: If the file cannot be read or is no TOML.
    """
    path = _find(name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UnreadableFileError(f"The suite {path} has more than {MAX_BYTES} bytes.")
        content = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise UnreadableFileError(
            f"The suite {path} cannot be read: {error.strerror or error}."
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnreadableFileError(f"The suite {path} is no TOML: {error}.") from None
    return _Reader(path).suite(content)


def shipped_suites() -> list[str]:
    """Names of the suites that come with the harness."""
    return sorted(path.stem for path in (code_root() / FOLDER).glob("*.toml"))


def _find(name: str) -> Path:
    given = Path(name)
    if given.suffix == ".toml" or len(given.parts) > 1:
        if given.is_file():
            return given
    else:
        for folder in (Path(FOLDER), code_root() / FOLDER):
            if (folder / f"{name}.toml").is_file():
                return folder / f"{name}.toml"
    here = sorted(path.stem for path in Path(FOLDER).glob("*.toml"))
    names = sorted({*here, *shipped_suites()})
    raise UserError(
        f"There is no suite {name!r}.{_nearest(name, names)} Known suites: "
        f"{', '.join(names) or 'none'}.",
        hint="Give one of these, or the path of a .toml file.",
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


class _Reader:
    """Turns TOML into a suite; every error names the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def suite(self, content: Mapping[str, Any]) -> Suite:
        self._only(content, _TOP, "")
        methods, benchmarks = (self._names(content, key) for key in ("methods", "benchmarks"))
        seeds = tuple(self._list(content, "seeds"))
        for index, seed in enumerate(seeds):
            self._whole(seed, f"seeds[{index}]", 0)
        self._no_repeats(seeds, "seeds")
        variants = [
            self._variant(name, table)
            for name, table in self._table(content.get("variants", {}), "variants").items()
        ]
        return Suite(
            self._path.stem,
            self._path,
            self._text(content.get("description", ""), "description"),
            methods,
            benchmarks,
            seeds,
            self._budgets(content.get("budget", {}), benchmarks),
            self._overrides(content.get("override", []), methods, benchmarks, seeds),
            variants,
        )

    def _budgets(
        self, value: Any, benchmarks: Sequence[str]
    ) -> dict[str, tuple[int | None, int | None]]:
        found = {}
        for name, table in self._table(value, "budget").items():
            self._one_of(name, benchmarks, f"budget.{name}", "names no benchmark of this suite")
            self._only(self._table(table, f"budget.{name}"), _BUDGET, f"budget.{name}.")
            found[name] = self._budget(table, f"budget.{name}")
        return found

    def _budget(self, table: Mapping[str, Any], where: str) -> tuple[int | None, int | None]:
        for key, low in (("episodes", 1), ("updates", 0)):
            if key in table:
                self._whole(table[key], f"{where}.{key}", low)
        return table.get("episodes"), table.get("updates")

    def _overrides(
        self, value: Any, methods: Sequence[str], benchmarks: Sequence[str], seeds: Sequence[int]
    ) -> list[Override]:
        if not isinstance(value, list):
            raise self._wrong("override", value, "a list of tables, each written [[override]]")
        found = []
        for index, table in enumerate(value):
            where = f"override[{index}]"
            self._only(self._table(table, where), _OVERRIDE, f"{where}.")
            for key, known in (("method", methods), ("benchmark", benchmarks), ("seed", seeds)):
                if key in table:
                    what = f"names no {key} of this suite"
                    self._one_of(table[key], known, f"{where}.{key}", what)
            only = table.get("seeds")
            if only is not None:
                for seed in self._list(table, "seeds", f"{where}."):
                    self._one_of(seed, seeds, f"{where}.seeds", "names no seed of this suite")
            skip = table.get("skip", False)
            if not isinstance(skip, bool):
                raise self._wrong(f"{where}.skip", skip, "true or false")
            episodes, updates = self._budget(table, where)
            found.append(
                Override(
                    table.get("method"),
                    table.get("benchmark"),
                    table.get("seed"),
                    None if only is None else tuple(only),
                    episodes,
                    updates,
                    skip,
                )
            )
        return found

    def _variant(self, name: str, table: Any) -> Variant:
        where = f"variants.{name}"
        self._only(self._table(table, where), _VARIANT, f"{where}.")
        if "method" not in table:
            raise UserError(f"{where}.method is missing in the suite {self._path}.")
        return Variant(
            name,
            self._text(table["method"], f"{where}.method"),
            self._table(table.get("config", {}), f"{where}.config"),
            f"suite {self._path}",
        )

    def _names(self, content: Mapping[str, Any], key: str) -> tuple[str, ...]:
        names = self._list(content, key)
        for index, name in enumerate(names):
            self._text(name, f"{key}[{index}]")
        self._no_repeats(names, key)
        return tuple(names)

    def _list(self, content: Mapping[str, Any], key: str, prefix: str = "") -> list[Any]:
        value = content.get(key)
        if not isinstance(value, list) or not value:
            if key not in content:
                raise UserError(f"{prefix}{key} is missing in the suite {self._path}.")
            raise self._wrong(f"{prefix}{key}", value, "a list of at least one")
        return value

    def _no_repeats(self, items: Sequence[Any], key: str) -> None:
        twice = next((item for item in items if items.count(item) > 1), None)
        if twice is not None:
            raise UserError(f"{key} in the suite {self._path} names {twice!r} twice.")

    def _only(self, table: Mapping[str, Any], known: Sequence[str], prefix: str) -> None:
        for key in table:
            if key not in known:
                raise UserError(
                    f"{prefix}{key} in the suite {self._path} is no setting."
                    f"{_nearest(key, known)} Known here: {', '.join(known)}."
                )

    def _one_of(self, value: Any, known: Sequence[Any], where: str, what: str) -> None:
        if value not in known:
            raise UserError(
                f"{where} in the suite {self._path} {what}: {value!r}."
                f"{_nearest(str(value), map(str, known))} It has {', '.join(map(str, known))}."
            )

    def _table(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(where, value, "a table")
        return value

    def _text(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise self._wrong(where, value, "a text in quotes")
        return value

    def _whole(self, value: Any, where: str, low: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_SEED:
            raise self._wrong(where, value, f"a whole number from {low} to {MAX_SEED}")

    def _wrong(self, where: str, value: Any, allowed: str) -> UserError:
        text = repr(value)
        text = text if len(text) <= 60 else f"{text[:60]}..."
        return UserError(f"{where} in the suite {self._path} is {text}; it must be {allowed}.")
