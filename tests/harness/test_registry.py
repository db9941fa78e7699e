"""Names, versions and origins; the built-in parts load without torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest

from harness.builtins import registries
from harness.errors import RegistryError
from harness.registry import Registry


@dataclass
class Part:
    name: str = "part"
    version: str = "1"


@pytest.fixture
def registry() -> Registry[Part]:
    registry: Registry[Part] = Registry("method")
    registry.register("part", "somewhere:PART", version="1", origin="here", loader=Part)
    return registry


def test_a_part_is_loaded_once_and_only_when_asked_for() -> None:
    loads = []
    registry: Registry[Part] = Registry("method")
    registry.register(
        "part", "a:B", version="1", origin="here", loader=lambda: loads.append(1) or Part()
    )
    assert [entry.name for entry in registry] == ["part"]
    assert loads == []
    assert registry.load("part") is registry.load("part")
    assert loads == [1]


def test_a_duplicate_names_both_origins(registry) -> None:
    with pytest.raises(RegistryError) as error:
        registry.register("part", "other:PART", version="2", origin="a plugin")
    assert "here (somewhere:PART)" in str(error.value)
    assert "a plugin (other:PART)" in str(error.value)
    assert registry.entry("part").version == "1"


def test_an_unknown_name_gives_the_nearest_and_the_list(registry) -> None:
    registry.register("whole", "a:B", version="1", origin="here")
    with pytest.raises(RegistryError, match=r"no method named 'prat'.*'part'\?.*part, whole"):
        registry.entry("prat")
    with pytest.raises(RegistryError) as error:
        registry.load("zzzzzz")
    assert "Did you mean" not in str(error.value)


@pytest.mark.parametrize("name", ["", "A", "a b", "../a", "-a", "a/b", "a" * 65, ".a", "ä", "a\n"])
def test_a_name_that_could_not_be_a_folder_is_refused(registry, name: str) -> None:
    with pytest.raises(RegistryError, match="name"):
        registry.register(name, "a:B", version="1", origin="here")


@pytest.mark.parametrize("target", ["no colon", "a:b:c", "a:", ":b", "a b:c"])
def test_a_malformed_target_is_refused_at_registration(registry, target: str) -> None:
    with pytest.raises(RegistryError, match="module:attribute"):
        registry.register("new", target, version="1", origin="here")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module_anywhere:X", "ModuleNotFoundError"),
        ("harness.errors:NO_SUCH_THING", "AttributeError"),
    ],
)
def test_a_part_that_cannot_be_loaded_names_its_origin(registry, target: str, said: str) -> None:
    registry.register("broken", target, version="1", origin="plugin /somewhere/mine.py")
    with pytest.raises(RegistryError, match=said) as error:
        registry.load("broken")
    assert "plugin /somewhere/mine.py" in str(error.value)
    assert target in str(error.value)


def test_the_declared_version_and_name_are_checked_on_loading(registry) -> None:
    registry.register("part2", "a:B", version="1", origin="here", loader=Part)
    with pytest.raises(RegistryError, match="name 'part2', but the object says 'part'"):
        registry.load("part2")
    newer: Registry[Part] = Registry("method")
    newer.register("part", "a:B", version="2", origin="here", loader=Part)
    with pytest.raises(RegistryError, match="version '2', but the object says '1'"):
        newer.load("part")


def test_every_built_in_part_loads_without_torch_and_can_be_pinned_to_a_cell() -> None:
    """In a fresh process, since others in this one may have imported torch already."""
    script = """
import sys
from harness.builtins import registries
from harness.spec import build_spec
known = registries()
ids = {
    build_spec(known.methods.load(m), known.benchmarks.load(b), seed=0).cell_id
    for m in known.methods.names() for b in known.benchmarks.names()
}
assert len(ids) == len(known.methods.names()) * len(known.benchmarks.names())
print("torch" in sys.modules, "mlflow" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_registries_of_one_process_are_independent() -> None:
    first, second = registries(), registries()
    first.methods.register("mine", "a:B", version="1", origin="here")
    assert "mine" in first.methods
    assert "mine" not in second.methods
