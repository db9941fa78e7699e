"""Names of methods and benchmarks, each bound to a lazy ``"module:attr"`` with version and origin.

Listing and planning touch names only; a part is imported when it is asked for. The version is
declared where the part is registered, so that listing needs no import, and compared with the part's
own when it is loaded, so that the two cannot drift apart.
"""

from __future__ import annotations

import difflib
import importlib
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
        version: Version declared at registration.
        origin: Who registered it, for example ``"built in"`` or ``"plugin /home/me/mine.py"``.
        description: One line.
        loader: Gives the object; called once.
    """

    name: str
    target: str
    version: str
    origin: str
    description: str
    loader: Callable[[], T] = field(repr=False, compare=False)


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
        version: str,
        origin: str,
        description: str = "",
        loader: Callable[[], T] | None = None,
    ) -> None:
        """Bind ``name`` to ``target`` (``"module:attr"``, imported on first use).

        Args:
            name: The name that people type.
            target: Where the object is.
            version: The object's version; checked when it is loaded.
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

    def __iter__(self) -> Iterator[Entry[T]]:
        """Entries in name order."""
        return iter([self._entries[name] for name in sorted(self._entries)])

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._entries)

    def entry(self, name: str) -> Entry[T]:
        """The entry of a name, without loading it.

        Raises:
            RegistryError: If the name is unknown; the message has the nearest name and the list.
        """
        entry = self._entries.get(name)
        if entry is not None:
            return entry
        near = difflib.get_close_matches(name.lower(), self._entries, n=1, cutoff=0.5)
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
            if actual != registered:
                raise RegistryError(
                    f"The {where} is registered with {attribute} {registered!r}, but the object "
                    f"says {actual!r}.",
                    hint="Make the two agree; results made under different versions must not mix.",
                )
        return part
