"""Methods and benchmarks from a local Python file (``--plugin ./my_method.py``).

A plugin file is an ordinary module that names what it brings in ``METHODS`` and ``BENCHMARKS``,
lists of objects that follow the protocols of ``methods.base``. It runs in this process and in the
worker, with this user's rights: only load files that you would run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import RegistryError
from harness.registry import Registry
from methods.base import Benchmark, Method


def load_plugin(path: Path, methods: Registry[Method], benchmarks: Registry[Benchmark]) -> None:
    """Import a plugin file and register what it names.

    Args:
        path: The file.
        methods: Receives the objects in the file's ``METHODS``.
        benchmarks: Receives the objects in the file's ``BENCHMARKS``.

    Raises:
        RegistryError: If the file cannot be read or imported, brings nothing, or brings a taken or
            malformed name. The message names the file.
    """
    path = Path(path).absolute()
    module = _import_file(path)
    origin = f"plugin {path}"
    brought = 0
    registry: Registry[Any]
    for attribute, registry in (("METHODS", methods), ("BENCHMARKS", benchmarks)):
        for position, part in enumerate(_parts(module, attribute, path)):
            _register(registry, part, f"{module.__name__}:{attribute}[{position}]", origin)
            brought += 1
    if not brought:
        raise RegistryError(
            f"The plugin {path} brings nothing: it defines neither METHODS nor BENCHMARKS.",
            hint="Add for example METHODS = [MyMethod()] to it.",
        )


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RegistryError(f"There is no plugin file {path}.", hint="--plugin takes a .py file.")
    # A name of its own: two plugins called mine.py, or one called torch.py, must not collide.
    name = f"auto_research_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RegistryError(f"{path} is no Python file (its name must end in .py).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is imported
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RegistryError(
            f"The plugin {path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module


def _parts(module: ModuleType, attribute: str, path: Path) -> list[Any]:
    parts = getattr(module, attribute, ())
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable):
        raise RegistryError(
            f"{attribute} in the plugin {path} is {parts!r}, not a list of objects."
        )
    return list(parts)


def _register(registry: Registry[Any], part: Any, target: str, origin: str) -> None:
    name, version = getattr(part, "name", None), getattr(part, "version", None)
    if not isinstance(name, str) or not isinstance(version, str):
        raise RegistryError(
            f"{target} ({origin}) has name {name!r} and version {version!r}; a {registry.kind} "
            "needs both as strings."
        )
    description = (type(part).__doc__ or "").strip().partition("\n")[0]
    registry.register(
        name, target, version=version, origin=origin, description=description, loader=lambda: part
    )
