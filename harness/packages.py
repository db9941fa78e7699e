"""Methods and benchmarks that installed packages bring, through entry points.

A package names each part in its metadata::

    [project.entry-points."auto_research.methods"]
    my-method = "my_package.my_method:METHOD"

    [project.entry-points."auto_research.benchmarks"]
    my-benchmark = "my_package.my_benchmark:BENCHMARK"

The entry point's name is the part's name, and its object a method or a benchmark, as in a plugin file.
Names come from metadata alone; a package is imported when one of its parts is used. Whatever is wrong
with one package is said by the name of the package when its part is used, and by ``auto-research
list``; it never stands in the way of the others.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.errors import RegistryError
from harness.plain_text import visible
from harness.plugins import check_part
from harness.registry import Registry

GROUPS = {"method": "auto_research.methods", "benchmark": "auto_research.benchmarks"}
_TARGET = metadata.EntryPoint.pattern
_IMPORTING = {__file__, metadata.__file__, importlib.__file__}
_SOURCES = tuple(importlib.machinery.SOURCE_SUFFIXES + importlib.machinery.EXTENSION_SUFFIXES)


@dataclass(frozen=True)
class InstalledPart:
    """One entry point of one of the two groups.

    Args:
        kind: ``"method"`` or ``"benchmark"``.
        name: The part's name.
        target: ``"module:attribute"`` as the metadata has it.
        package: Name of the distribution.
        version: Version of the distribution.
        point: The entry point.
        distribution: The distribution.
    """

    kind: str
    name: str
    target: str
    package: str
    version: str
    point: metadata.EntryPoint
    distribution: metadata.Distribution

    @property
    def origin(self) -> str:
        """For example ``"package my-parts 0.1.0"``."""
        return f"package {self.package} {self.version}"


def installed_parts() -> list[InstalledPart]:
    """Every part that an installed package names, in the order of package and name.

    Of several installations of a package, the first on the path counts, as for an import.
    """
    found: list[InstalledPart] = []
    seen: set[str] = set()
    for distribution in metadata.distributions():
        # Metadata is other people's files: one that cannot be read must not end every command.
        with contextlib.suppress(Exception):
            points = [p for p in distribution.entry_points if p.group in GROUPS.values()]
            if not points:
                continue
            package = visible(str(distribution.metadata["Name"]))
            version = visible(str(distribution.metadata["Version"]))
            key = package.lower().replace("_", "-").replace(".", "-")
            if key in seen:
                continue
            seen.add(key)
            found += [
                InstalledPart(kind, p.name, p.value, package, version, p, distribution)
                for kind, group in GROUPS.items()
                for p in points
                if p.group == group
            ]
    return sorted(found, key=lambda part: (part.package, part.version, part.kind, part.name))


def register_installed(methods: Registry[Any], benchmarks: Registry[Any]) -> None:
    """Make the parts of installed packages known; nothing of theirs is imported.

    A name that is malformed or taken is kept as one that cannot be used, and so is the one that it
    collides with: which of the two a person means cannot be known.
    """
    registries = {"method": methods, "benchmark": benchmarks}
    for part in installed_parts():
        registry = registries[part.kind]
        target = visible(part.target)
        try:
            registry.register(
                part.name,
                target,
                version=None,
                origin=part.origin,
                loader=lambda part=part: load_installed(part),  # type: ignore[misc]
            )
        except RegistryError as problem:
            registry.refuse(part.name, target, origin=part.origin, problem=problem)


def load_installed(part: InstalledPart) -> Any:
    """Import a part.

    Raises:
        RegistryError: If the package cannot be imported or the object is no such part; the message
            names the package.
    """
    where = f"{part.kind} {part.name!r} ({visible(part.target)}, {part.origin})"
    try:
        # What a package prints while it is imported must not get between the lines of a result.
        with contextlib.redirect_stdout(sys.stderr):
            loaded = part.point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a package does not end us
        raise _import_failure(where, part, error) from error
    check_part(part.kind, loaded, where)
    return loaded


def _import_failure(where: str, part: InstalledPart, error: BaseException) -> RegistryError:
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        said = f"it calls sys.exit({error.code!r})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and frame.filename not in _IMPORTING
    ]
    line = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    hint = f"pip install --upgrade {part.package}   # or: pip uninstall {part.package}"
    if isinstance(error, ModuleNotFoundError):
        hint = f"Install what provides {error.name!r} into this Python ({sys.executable})."
    elif not _TARGET.fullmatch(part.target):
        hint = f"An entry point of {part.package} must be written 'module:attribute'."
    return RegistryError(f"Cannot load the {where}: {said}{line}.", hint=hint)


def package_sources(names: Iterable[str] | None = None) -> list[tuple[str, Path]]:
    """The code of the installed packages that bring parts.

    Covered are the Python and extension files that a package installed, and all below the packages
    that its entry points lie in (an editable installation lists no files), but not what these import
    from other packages.

    Args:
        names: Only of packages that bring a part of one of these names; all if None.

    Returns:
        (name that is the same wherever the package is installed, file), sorted.
    """
    wanted = None if names is None else set(names)
    found: dict[Path, str] = {}
    parts = installed_parts()
    packages = {part.package for part in parts if wanted is None or part.name in wanted}
    for part in parts:
        if part.package not in packages:
            continue
        for name, path in (*_listed(part.distribution), *_imported(part.point)):
            found.setdefault(path.resolve(), f"{part.package}/{name}")
    return sorted((name, path) for path, name in found.items())


def _listed(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """The code files in the package's own list of what it installed."""
    for file in distribution.files or ():
        path = Path(str(file.locate()))
        # An editable installation's finder holds the path of the checkout.
        if file.name.endswith(_SOURCES) and path.is_file() and "__editable__" not in file.name:
            yield file.as_posix(), path


def _imported(point: metadata.EntryPoint) -> Iterator[tuple[str, Path]]:
    """The code files of the outermost package (or the module) that an entry point lies in."""
    module = _TARGET.match(point.value)
    parts = module["module"].split(".") if module else []
    for depth in range(1, len(parts) + 1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:depth]))
        except (ImportError, ValueError, AttributeError):
            return
        if spec is None:
            return
        if spec.origin is None or not spec.has_location:
            continue  # a namespace package: others have parts of it, too
        origin = Path(spec.origin)
        if spec.submodule_search_locations is None:
            yield origin.name, origin
            return
        root = origin.parent
        for path in sorted(root.rglob("*")):
            if path.name.endswith(_SOURCES) and path.is_file():
                yield path.relative_to(root.parent).as_posix(), path
        return
