"""Error messages without the paths of the machine they were made on."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.scrub import scrub_paths

KNOWN = {
    Path("/data/my runs"): "<runs>",
    Path("/data/my runs/m/cell"): "<cell>",
    Path("/data/mine.py"): "<plugin>/mine.py",
}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("File exists: '/data/my runs/base/0123'", "File exists: '<runs>/base/0123'"),
        ("rm -r /data/my runs/m/cell/checkpoint", "rm -r <cell>/checkpoint"),
        ("no /data/my runs/m/cell.", "no <cell>."),
        ("/data/mine.py:3: bad", "<plugin>/mine.py:3: bad"),
        ("/data/my runs2/x", "<path>/my runs2/x"),
        ("open /srv/secret/a.bin failed", "open <path>/a.bin failed"),
        ("at:/srv/secret/a.bin", "at:<path>/a.bin"),
        ("'/srv/two words/a b.bin'", "'<path>/a b.bin'"),
        ("file:///srv/secret/a.bin", "<path>/a.bin"),
        ("see https://example.org/a/b, 3 /s, and/or, a/b/c", None),
        ("shape (2, 3) / (3, 4), 1/2/3", None),
    ],
)
def test_no_absolute_path_is_left(text: str, clean: str | None) -> None:
    assert scrub_paths(text, KNOWN) == (text if clean is None else clean)


def test_the_current_and_the_home_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "home" / "work"
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert scrub_paths(f"{home}/a and {here}/b", {}) == "<home>/a and <cwd>/b"
    monkeypatch.chdir("/")
    assert scrub_paths("a / b", {}) == "a / b"
