"""Names of methods and benchmarks, each bound to a lazy ``"module:attr"`` with version and origin.

Listing and planning touch names only; a part is imported when it is asked for. The version is
declared where the part is registered, so that listing needs no import, and compared with the part's
own when it is loaded, so that the two cannot drift apart. Where only the part itself says its version
(an installed package's entry point has a name and nothing else), it is None until then.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from harness.errors import RegistryError

T = TypeVar("T")

# Names become folder and file names, so they stay within what every file system takes.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered name.

    Args:
        name: Lower-case letters, digits, ``.``, ``_`` and ``-``.
        target: ``"module:attr"``, for people to read.
        version: Version declared at registration; None where only the object says it.
        origin: Who registered it, for example ``"built in"`` or ``"plugin /home/me/mine.py"``.
        description: One line.
        loader: Gives the object; called once.
        problem: Why the name cannot be used, or None.
    """

    name: str
    target: str
    version: str | None
    origin: str
    description: str
    loader: Callable[[], T] = field(repr=False, compare=False)
    problem: RegistryError | None = field(default=None, repr=False, compare=False)


def _import_target(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module_name), attribute)


class Registry(Generic[T]):
    """Name -> lazily loaded part.

    Args:
        kind: What the parts are called in messages: ``"method"`` or ``"benchmark"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}
        self._loaded: dict[str, T] = {}

    def register(
        self,
        name: str,
        target: str,
        *,
        version: str | None,
        origin: str,
        description: str = "",
        loader: Callable[[], T] | None = None,
    ) -> None:
        """Bind ``name`` to ``target`` (``"module:attr"``, imported on first use).

        Args:
            name: The name that people type.
            target: Where the object is.
            version: The object's version, checked when it is loaded; None if only the object knows.
            origin: Who registers it; named in every error about it.
            description: One line for ``auto-research list``.
            loader: Gives the object instead of importing ``target`` (plugins).

        Raises:
            RegistryError: If the name is malformed or taken; the message names both origins.
        """
        if not _NAME.fullmatch(name):
            raise RegistryError(
                f"{name!r} ({origin}) is no {self.kind} name: allowed are 1 to 64 lower-case "
                "letters, digits, '.', '_' and '-', with a letter or digit at both ends."
            )
        taken = self._entries.get(name)
        if taken is not None:
            raise RegistryError(
                f"The {self.kind} name {name!r} is registered twice: by {taken.origin} "
                f"({taken.target}) and by {origin} ({target}).",
                hint="Rename one of them.",
            )
        if loader is None:
            if not re.fullmatch(r"[\w.]+:\w+", target):
                raise RegistryError(
                    f"{target!r} ({self.kind} {name!r}, {origin}) is no 'module:attribute'."
                )

            def loader() -> T:
                return cast(T, _import_target(target))

        self._entries[name] = Entry(name, target, version, origin, description, loader)

    def refuse(self, name: str, target: str, *, origin: str, problem: RegistryError) -> None:
        """Keep a registration that cannot stand: whoever asks for the name is told ``problem``.

        For parts that nobody asked for by name, such as those of installed packages: one that
        collides must neither win in silence nor keep the others from being used.

        Args:
            name: The name; what it meant before is no longer given out.
            target: Where the object would have been.
            origin: Who wanted to register it.
            problem: What to say.
        """
        taken = self._entries.get(name)
        if taken is not None:
            origin = f"{taken.origin}; {origin}"
            target = taken.target if target == taken.target else f"{taken.target}; {target}"

        def loader() -> T:
            raise problem

        self._entries[name] = Entry(name, target, None, origin, "", loader, problem)

    def __iter__(self) -> Iterator[Entry[T]]:
        """Entries in name order, those that cannot be used included."""
        return iter([self._entries[name] for name in sorted(self._entries)])

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """All names that can be asked for, sorted."""
        return sorted(name for name, entry in self._entries.items() if entry.problem is None)

    def entry(self, name: str) -> Entry[T]:
        """The entry of a name, without loading it.

        Raises:
            RegistryError: If the name is unknown (the message has the nearest name and the list) or
                cannot be used.
        """
        entry = self._entries.get(name)
        if entry is not None:
            if entry.problem is not None:
                raise entry.problem
            return entry
        near = difflib.get_close_matches(name.lower(), self.names(), n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(self.names()) or "none"
        raise RegistryError(
            f"There is no {self.kind} named {name!r}.{guess} Known {self.kind}s: {known}.",
            hint="auto-research list",
        )

    def load(self, name: str) -> T:
        """The part itself, imported on first use.

        Raises:
            RegistryError: If the name is unknown, the import fails, or the loaded object's name or
                version is not the registered one. The message names the origin.
        """
        entry = self.entry(name)
        if name not in self._loaded:
            self._loaded[name] = self._checked(entry)
        return self._loaded[name]

    def resolved(self, name: str) -> Entry[T]:
        """The entry with what only the loaded part says: version and description.

        Raises:
            RegistryError: As :meth:`load`.
        """
        entry = self.entry(name)
        if entry.version is not None:
            return entry
        part = self.load(name)
        said = entry.description or (inspect.getdoc(type(part)) or "").partition("\n")[0]
        return dataclasses.replace(entry, version=getattr(part, "version", None), description=said)

    def _checked(self, entry: Entry[T]) -> T:
        where = f"{self.kind} {entry.name!r} ({entry.target}, {entry.origin})"
        try:
            part = entry.loader()
        except RegistryError:
            raise
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            raise RegistryError(
                f"Cannot load the {where}: {type(error).__name__}: {error}",
                hint="auto-research doctor   # says what is missing and how to get it"
                if missing
                else None,
            ) from error
        for attribute, registered in (("name", entry.name), ("version", entry.version)):
            actual = getattr(part, attribute, None)
            if registered is not None and actual != registered:
                raise RegistryError(
                    f"The {where} is registered with {attribute} {registered!r}, but the object "
                    f"says {actual!r}.",
                    hint="Make the two agree; results made under different versions must not mix.",
                )
        return part
