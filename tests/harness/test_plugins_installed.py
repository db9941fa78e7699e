"""Parts of installed packages: names from metadata, collisions, broken packages, fingerprints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import provenance
from harness.builtins import registries
from harness.errors import RegistryError
from harness.packages import installed_parts, package_sources

METHOD = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Config:
    rate: float = 0.5
class Method:
    "Somebody else's."
    name = "{name}"
    version = "7"
    config = Config()
    def run_agent(self, suite, context): ...
METHOD = Method()
"""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts packages where Python finds them, as an installer would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def put(package: str, points: str, listed: bool = True, **modules: str) -> Path:
        info = site / f"{package.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(points)
        for name, text in modules.items():
            (site / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        if listed:
            (info / "RECORD").write_text("".join(f"{name}.py,,\n" for name in modules))
        return site

    return put


def points(name: str, target: str, group: str = "methods") -> str:
    return f"[auto_research.{group}]\n{name} = {target}\n"


def test_a_package_is_imported_only_when_its_part_is_used(install: Install) -> None:
    text = "import sys\nsys.stdout.write('imported')\n" + METHOD.format(name="far-off")
    install("far-parts", points("far-off", "far_mod:METHOD"), far_mod=text)
    known = registries()
    assert "far_mod" not in sys.modules
    entry = known.methods.entry("far-off")
    assert (entry.version, entry.origin) == (None, "package far-parts 1.5")
    assert "far_mod" not in sys.modules
    entry = known.methods.resolved("far-off")
    assert (entry.version, entry.description) == ("7", "Somebody else's.")
    assert known.methods.load("far-off").version == "7"


def test_what_a_package_prints_while_it_is_imported_stays_off_the_output(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "print('hello')\n" + METHOD.format(name="loud")
    install("loud-parts", points("loud", "loud_mod:METHOD"), loud_mod=text)
    registries().methods.load("loud")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err


@pytest.mark.parametrize(
    ("module", "target", "said", "hint"),
    [
        (
            "import no_such_thing_at_all",
            "bad_mod:M",
            "ModuleNotFoundError",
            "Install what provides",
        ),
        ("\n1 / 0\n", "bad_mod:M", "ZeroDivisionError: division by zero (bad_mod.py:2)", "pip"),
        ("raise SystemExit(3)", "bad_mod:M", "it calls sys.exit(3)", "pip"),
        ("x = (", "bad_mod:M", "SyntaxError", "pip"),
        ("x = 1", "bad_mod:M", "AttributeError", "pip"),
        ("class M: pass", "bad_mod:M", "is the class M, not an object of it", "Write M()"),
        ("M = object()", "bad_mod:M", "name is missing; version is missing", "methods/base.py"),
        (METHOD.format(name="other"), "bad_mod:METHOD", "but the object says 'other'", "agree"),
        ("M = 1", "!! no target !!", "AttributeError", "'module:attribute'"),
    ],
)
def test_a_broken_package_is_named_and_hurts_nobody_else(
    install: Install, module: str, target: str, said: str, hint: str
) -> None:
    install("bad-parts", points("bad", target), bad_mod=module)
    install("good-parts", points("good", "good_mod:METHOD"), good_mod=METHOD.format(name="good"))
    known = registries()
    with pytest.raises(RegistryError) as error:
        known.methods.load("bad")
    assert said in str(error.value)
    assert "package bad-parts 1.5" in str(error.value)
    assert error.value.hint is not None
    assert hint in error.value.hint
    assert known.methods.load("good").name == "good"
    assert known.methods.load("sinkflex-rl").name == "sinkflex-rl"


def test_metadata_that_cannot_be_read_hides_its_own_package_only(install: Install) -> None:
    site = install("torn-parts", "", torn_mod="")
    (site / "torn_parts-1.5.dist-info" / "entry_points.txt").write_bytes(b"[auto_research.\xff\xfe")
    install("good-parts", points("good", "good_mod:METHOD"), good_mod=METHOD.format(name="good"))
    assert [part.name for part in installed_parts() if part.package.endswith("-parts")] == ["good"]


def test_two_packages_with_one_name_are_both_named_and_neither_wins(install: Install) -> None:
    for package in ("one-parts", "two-parts"):
        module = package.replace("-", "_")
        install(package, points("same", f"{module}:METHOD"), **{module: METHOD.format(name="same")})
    known = registries()
    for ask in (known.methods.load, known.methods.entry, known.methods.resolved):
        with pytest.raises(RegistryError, match="registered twice") as error:
            ask("same")
        assert "package one-parts 1.5" in str(error.value)
        assert "package two-parts 1.5" in str(error.value)
    assert "same" not in known.methods.names()
    shown = {entry.name: entry.origin for entry in known.methods}
    assert shown["same"] == "package one-parts 1.5; package two-parts 1.5"
    assert known.methods.load("no-sink").name == "no-sink"


def test_a_package_cannot_take_a_built_in_name_in_silence(install: Install, tmp_path) -> None:
    install("sly-parts", points("no-sink", "sly_mod:METHOD"), sly_mod="raise RuntimeError")
    known = registries()
    with pytest.raises(RegistryError, match=r"built in.*package sly-parts 1\.5"):
        known.methods.load("no-sink")
    assert known.methods.load("sinkflex-rl").name == "sinkflex-rl"


def test_a_malformed_name_is_told_to_whoever_asks_and_in_no_list_of_names(install: Install) -> None:
    install("odd-parts", points("../Up", "odd_mod:METHOD"), odd_mod="")
    known = registries()
    with pytest.raises(RegistryError, match=r"'\.\./Up' \(package odd-parts 1\.5\) is no method"):
        known.methods.load("../Up")
    assert "../Up" not in known.methods.names()


def test_a_plugin_file_that_collides_with_a_package_is_refused_at_once(
    install: Install, tmp_path: Path
) -> None:
    install("good-parts", points("good", "good_mod:METHOD"), good_mod=METHOD.format(name="good"))
    plugin = tmp_path / "mine.py"
    plugin.write_text(METHOD.format(name="good") + "METHODS = [METHOD]")
    with pytest.raises(RegistryError, match=r"package good-parts 1\.5 .*plugin .*mine\.py"):
        registries([plugin])


def test_methods_and_benchmarks_have_names_of_their_own(install: Install) -> None:
    both = points("good", "good_mod:METHOD") + points("good", "good_mod:B", "benchmarks")
    install("good-parts", both, good_mod=METHOD.format(name="good"))
    known = registries()
    assert known.methods.load("good").name == "good"
    with pytest.raises(RegistryError, match=r"benchmark 'good' \(good_mod:B, package good-parts"):
        known.benchmarks.load("good")


def test_the_code_fingerprint_covers_a_package_that_the_cell_uses_and_no_other(
    install: Install,
) -> None:
    bare = provenance.code_fingerprint()
    bare_cell = provenance.code_fingerprint(names=["sinkflex-rl", "scalemcp-mini"])
    assert bare == bare_cell
    site = install(
        "good-parts",
        points("good", "good_mod:METHOD"),
        good_mod=METHOD.format(name="good"),
        good_help="x = 1\n",
    )
    install("other-parts", points("other", "other_mod:METHOD"), other_mod="y = 1\n")
    cell = ["good", "scalemcp-mini"]
    all_, mine = provenance.code_fingerprint(), provenance.code_fingerprint(names=cell)
    assert len({bare, all_, mine}) == 3
    assert provenance.code_fingerprint(names=["sinkflex-rl", "scalemcp-mini"]) == bare
    (site / "other_mod.py").write_text("y = 2\n")
    assert provenance.code_fingerprint(names=cell) == mine
    assert provenance.code_fingerprint() != all_
    (site / "good_help.py").write_text("# said why\nx = 1\n")
    assert provenance.code_fingerprint(names=cell) == mine
    (site / "good_help.py").write_text("x = 2\n")  # no entry point names it; the package lists it
    assert provenance.code_fingerprint(names=cell) != mine


def test_an_editable_package_lists_nothing_and_is_covered_all_the_same(install: Install) -> None:
    site = install("deep-parts", points("deep", "deep_pkg.inner.mod:METHOD"), listed=False)
    inner = site / "deep_pkg" / "inner"
    inner.mkdir(parents=True)
    (site / "deep_pkg" / "__init__.py").write_text("raise RuntimeError('imported')")
    (inner / "mod.py").write_text("x = 1")
    (inner / "data.json").write_text("{}")
    names = [name for name, _ in package_sources(["deep"])]
    assert names == ["deep-parts/deep_pkg/__init__.py", "deep-parts/deep_pkg/inner/mod.py"]
    before = provenance.code_fingerprint(names=["deep"])
    (inner / "mod.py").write_text("x = 2")
    assert provenance.code_fingerprint(names=["deep"]) != before


def test_of_a_namespace_only_the_packages_own_part_is_covered(install: Install) -> None:
    site = install("name-parts", points("spaced", "common_ns.mine:METHOD"), listed=False)
    for folder in ("mine", "theirs"):
        (site / "common_ns" / folder).mkdir(parents=True)
        (site / "common_ns" / folder / "__init__.py").write_text("")
    assert [name for name, _ in package_sources(["spaced"])] == ["name-parts/mine/__init__.py"]


def test_a_compiled_module_counts_byte_by_byte(install: Install) -> None:
    site = install("fast-parts", points("fast", "fast_pkg:METHOD"), listed=False)
    (site / "fast_pkg").mkdir()
    (site / "fast_pkg" / "__init__.py").write_text("")
    native = site / "fast_pkg" / "core.abi3.so"
    native.write_bytes(b"\x7fELF\n# looks like a comment\n")
    before = provenance.code_fingerprint(names=["fast"])
    native.write_bytes(b"\x7fELF\n# another comment\n")
    assert provenance.code_fingerprint(names=["fast"]) != before


def test_listing_the_registries_imports_neither_torch_nor_a_package(install: Install) -> None:
    site = install("good-parts", points("good", "good_mod:METHOD"), good_mod="raise RuntimeError")
    script = "import sys; from harness.builtins import registries; "
    script += "print(registries().methods.names(), 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r}); {script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'good'" in done.stdout, done.stderr
    assert done.stdout.rstrip().endswith("False")
