"""A report's folder: its bytes, and whose files are touched."""

import json
import shutil

import pytest

from harness.errors import UserError
from harness.reporting.data import load_report_data
from harness.reporting.manifest import write_files
from harness.reporting.render import render

FROM_METRICS_ALONE = (
    "claims.md",
    "comparison.csv",
    "comparison.md",
    "comparison.tex",
    "metrics.csv",
    "peak-memory.svg",
    "success-against-cost-scalemcp-mini.svg",
    "success-by-tier-scalemcp-mini.svg",
)


def tree(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def rendered(tmp_path_factory, make):
    """The committed results, rendered from a copy somewhere else on the disk."""
    root = tmp_path_factory.mktemp("one")
    shutil.copytree(make.committed, root / "metrics")
    data = load_report_data(root / "metrics", root / "runs", against="eager-attention")
    return root, render(data, root / "reports")


def test_the_same_results_give_the_same_bytes_anywhere(rendered, tmp_path, make):
    root, rendering = rendered
    data = load_report_data(make.committed, None, against="eager-attention")
    again = render(data, tmp_path / "elsewhere")
    assert tree(root / "reports") == tree(tmp_path / "elsewhere")
    assert rendering.written.files == again.written.files
    assert set(FROM_METRICS_ALONE) <= set(rendering.written.files)


def test_nothing_says_where_or_when_it_was_rendered(rendered):
    root, _ = rendered
    for name, data in tree(root / "reports").items():
        assert str(root).encode() not in data, name


def test_the_committed_report_is_what_the_committed_results_give(rendered, make):
    """Whatever of it needs no run record, if a report is committed."""
    root, _ = rendered
    committed = make.committed.parent / "reports"
    there = [name for name in FROM_METRICS_ALONE if (committed / name).exists()]
    assert there == [] or there == list(FROM_METRICS_ALONE)
    for name in there:
        assert (committed / name).read_bytes() == (root / "reports" / name).read_bytes(), name


def test_a_clone_without_runs_is_told_what_is_missing(rendered):
    root, rendering = rendered
    text = (root / "reports" / "overview.md").read_text()
    assert "## Not here" in text
    assert any("Learning curves" in item for item in rendering.missing)
    assert any("run folders are not here" in item for item in rendering.missing)
    assert "success-by-tier-scalemcp-mini.svg" in text


def test_comparison_and_claims_do_not_depend_on_runs(load, make, tmp_path):
    documents = make.three_methods()
    render(load(*documents), tmp_path / "without")
    for made in documents:
        make.write_run(tmp_path / "runs", made)
    render(load(*documents), tmp_path / "with")
    for name in FROM_METRICS_ALONE[:5]:
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    assert (tmp_path / "with" / "learning-curves-bench.svg").exists()
    assert not (tmp_path / "without" / "learning-curves-bench.svg").exists()


def test_broken_run_records_and_foreign_attempts_are_no_source(load, make, tmp_path):
    documents = make.three_methods()
    folder = make.write_run(tmp_path / "runs", documents[0])
    (folder / "run.json").write_text("{")
    other = make.write_run(tmp_path / "runs", documents[1], status="failed")
    data = load(*documents)
    assert [problem.path for problem in data.problems] == [
        f"runs/windowed/{folder.name}/run.json".replace("windowed", documents[0]["method"]["name"])
    ]
    assert all(cell.record is None for cell in data.cells)
    assert (other / "run.json").exists()


# --- Whose files are touched ----------------------------------------------------------------------


def test_own_stale_files_go_and_others_stay(tmp_path):
    out = tmp_path / "out"
    write_files(out, {"a.md": b"a", "cells/b.html": b"b", "c.md": b"c"})
    (out / "notes.txt").write_text("mine")
    (out / "c.md").write_text("edited by somebody")
    done = write_files(out, {"a.md": b"a"})
    assert (done.removed, done.kept, done.changed) == (
        ("cells/b.html",),
        ("c.md",),
        ("manifest.json",),
    )
    assert sorted(tree(out)) == ["a.md", "c.md", "manifest.json", "notes.txt"]
    assert not (out / "cells").exists()


def test_writing_the_same_again_touches_nothing(tmp_path):
    files = {"a.md": b"a", "cells/b.html": b"b"}
    assert write_files(tmp_path, files).changed == ("a.md", "cells/b.html", "manifest.json")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert write_files(tmp_path, files).changed == ()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def test_files_that_no_report_wrote_are_not_replaced(tmp_path):
    (tmp_path / "index.html").write_text("my home page")
    with pytest.raises(UserError, match=r"index\.html") as caught:
        write_files(tmp_path, {"index.html": b"x", "a.md": b"a"})
    assert "--overwrite" in caught.value.hint
    assert sorted(tree(tmp_path)) == ["index.html"]
    write_files(tmp_path, {"index.html": b"x", "a.md": b"a"}, overwrite=True)
    assert (tmp_path / "index.html").read_bytes() == b"x"
    write_files(tmp_path, {"index.html": b"y"})  # now it is the report's


@pytest.mark.parametrize(
    "names",
    [
        {"../victim.txt": None},
        {"/etc/hostname": None},
        {"link/victim.txt": None},
        {"victim-link": None},
        {".hidden": None},
        {"sub": None},
    ],
)
def test_a_forged_manifest_removes_nothing_elsewhere(tmp_path, names):
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / ".hidden").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for victim in (tmp_path / "victim.txt", elsewhere / "victim.txt"):
        victim.write_text("precious")
    (out / "link").symlink_to(elsewhere)
    (out / "victim-link").symlink_to(elsewhere / "victim.txt")
    forged = {"schema_version": 1, "files": names}
    (out / "manifest.json").write_text(json.dumps(forged))
    done = write_files(out, {"a.md": b"a"})
    assert done.removed == ()
    assert (tmp_path / "victim.txt").read_text() == "precious"
    assert (elsewhere / "victim.txt").read_text() == "precious"
    assert (out / "victim-link").is_symlink()
    assert (out / ".hidden").exists()


def test_nothing_is_written_through_a_link(tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for directory in (out, elsewhere):
        directory.mkdir()
    (out / "cells").symlink_to(elsewhere)
    with pytest.raises(UserError):
        write_files(out, {"cells/a.html": b"a"}, overwrite=True)
    assert list(elsewhere.iterdir()) == []


def test_after_a_kill_in_the_middle_the_manifest_still_lists_all(tmp_path, monkeypatch):
    from harness.reporting import manifest

    write_files(tmp_path, {"old.md": b"old"})
    real = manifest.atomic_write

    def killed(path, data):
        if path.name == "b.md":
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(manifest, "atomic_write", killed)
    with pytest.raises(KeyboardInterrupt):
        write_files(tmp_path, {"a.md": b"a", "b.md": b"b"})
    monkeypatch.undo()
    done = write_files(tmp_path, {"c.md": b"c"})
    assert done.removed == ("a.md", "old.md")
    assert sorted(tree(tmp_path)) == ["c.md", "manifest.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"files": 3}', '{"schema_version": 1, "files": [1]}']
)
def test_a_manifest_that_cannot_be_read_claims_nothing(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    (tmp_path / "a.md").write_text("mine")
    with pytest.raises(UserError, match=r"a\.md"):
        write_files(tmp_path, {"a.md": b"x"})


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", ".x", "", "a/../b", "manifest.json"])
def test_a_report_writes_in_its_folder_only(tmp_path, name):
    with pytest.raises(ValueError, match="name"):
        write_files(tmp_path / "out", {name: b"x"})
