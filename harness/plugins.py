"""Methods and benchmarks from a local Python file (``--plugin ./my_method.py``).

A plugin file is an ordinary module that names what it brings in ``METHODS`` and ``BENCHMARKS``,
lists of objects that follow the protocols of ``methods.base``. It runs in this process and in the
worker, with this user's rights: only load files that you would run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import RegistryError
from harness.registry import Registry
from methods.base import Benchmark, Method


def without_repeats(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The plugin files in order, each once: a file that is named twice is one plugin."""
    return tuple({Path(path).resolve(): Path(path) for path in reversed(list(paths))}.values())[
        ::-1
    ]


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
    brought = 0
    registry: Registry[Any]
    for attribute, registry in (("METHODS", methods), ("BENCHMARKS", benchmarks)):
        for position, part in enumerate(_parts(module, attribute, path)):
            _register(registry, part, f"{module.__name__}:{attribute}[{position}]", path)
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a plugin does not end us
        del sys.modules[name]
        raise _plugin_failure(f"The plugin {path} cannot be imported", error, path) from error
    return module


def _plugin_failure(what: str, error: BaseException, path: Path) -> RegistryError:
    """An error that says which line of the plugin raised what."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    where = f" ({path.name}:{lines[-1]})" if lines else ""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        said = f"it calls sys.exit({error.code!r})"
    hint = "Correct that line of the plugin, and type the same command again."
    if isinstance(error, ModuleNotFoundError):
        hint = f"Install what provides {error.name!r} into this Python ({sys.executable})."
    return RegistryError(f"{what}: {said}{where}.", hint=hint)


def _parts(module: ModuleType, attribute: str, path: Path) -> list[Any]:
    parts = getattr(module, attribute, ())
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable):
        raise RegistryError(
            f"{attribute} in the plugin {path} is {parts!r}, not a list of objects.",
            hint=f"Write for example {attribute} = [MyPart()].",
        )
    try:
        return list(parts)
    except Exception as error:  # a generator runs the plugin's code
        raise _plugin_failure(f"{attribute} in the plugin {path} fails", error, path) from error


def _register(registry: Registry[Any], part: Any, target: str, path: Path) -> None:
    origin = f"plugin {path}"
    check_part(registry.kind, part, f"{target} ({origin})")
    description = (type(part).__doc__ or "").strip().partition("\n")[0]
    registry.register(
        part.name,
        target,
        version=part.version,
        origin=origin,
        description=description,
        loader=lambda: part,
    )


def check_part(kind: str, part: Any, where: str) -> None:
    """Whether an object has what planning and running rely on.

    Args:
        kind: ``"method"`` or ``"benchmark"``.
        part: The object.
        where: What it is called in the error, with its origin.

    Raises:
        RegistryError: If something is missing or of another type; the message names all of it.
    """
    if isinstance(part, type):
        raise RegistryError(
            f"{where} is the class {part.__name__}, not an object of it.",
            hint=f"Write {part.__name__}() instead of {part.__name__}.",
        )
    problems = [
        f"{member} {wrong}"
        for member, allowed, fits in _PROTOCOLS[kind]
        if (wrong := _misfit(part, member, allowed, fits))
    ]
    if problems:
        raise RegistryError(
            f"{where} is no {kind}: {'; '.join(problems)}.",
            hint=f"methods/base.py says what a {kind} needs.",
        )


def _misfit(part: Any, member: str, allowed: str, fits: Callable[[Any], bool]) -> str:
    """What is wrong with one member of a part, empty if nothing."""
    try:
        value = getattr(part, member)
    except AttributeError as error:
        return "is missing" if error.name == member else f"raises AttributeError: {error}"
    except Exception as error:  # noqa: BLE001  a property runs the plugin's code
        return f"raises {type(error).__name__}: {error}"
    return "" if fits(value) else f"is {reprlib.repr(value)}, not {allowed}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Member, what it must be, and the test of it: what planning and running rely on.
_PROTOCOLS: Mapping[str, Sequence[tuple[str, str, Callable[[Any], bool]]]] = {
    "method": (
        ("name", "a string", _is_text),
        ("version", "a string", _is_text),
        ("config", "an instance of a dataclass", _is_dataclass),
        ("run_agent", "a function", callable),
    ),
    "benchmark": (
        ("name", "a string", _is_text),
        ("version", "a string", _is_text),
        ("metric_specs", "a mapping", lambda value: isinstance(value, Mapping)),
        ("summary", "a sequence", lambda value: isinstance(value, Sequence)),
        ("default_episodes", "an integer", _is_count),
        ("default_updates", "an integer", _is_count),
        ("data_fingerprint", "a function", callable),
        ("run", "a function", callable),
    ),
}
