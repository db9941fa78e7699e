"""What is drawn, what is said to be missing, and that nothing but the data decides the bytes."""

import io
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from harness.reporting.data import CellData, PaperPoint, ReportData, load_report_data
from harness.reporting.plots import build_plots
from harness.reporting.plots_style import COLOURS, looks

PAPER = (
    PaperPoint("peak_bytes", "eager-attention", 4096, 28.06e9),
    PaperPoint("peak_bytes", "windowed", 4096, 22.52e9),
    PaperPoint("peak_bytes", "windowed", 8192, 25.53e9),
    PaperPoint("peak_bytes", "eager-attention", 8192, None),
)


def with_runs(make, runs, documents):
    for made in documents:
        make.write_run(runs, made)
    return documents


def cell_of(made, **extra):
    key = (made["method"]["name"], made["benchmark"]["name"], made["seed"])
    return CellData(key, made, **extra)


@pytest.fixture(scope="module")
def complete(make, tmp_path_factory):
    """Plots of data that have everything."""
    root = tmp_path_factory.mktemp("complete")
    documents = with_runs(make, root / "runs", make.three_methods())
    sizes = {2**k: 1e8 + 4.0**k for k in range(8, 14)}
    timed = make.sweep("windowed", {length: 2e8 + length for length in sizes})
    timed["metrics"]["seconds_cuda_at_4096"] = make.entry(0.5, unit="s", direction="neutral")
    timed["metrics"]["seconds_cuda_at_8192"] = make.entry(1.0, unit="s", direction="neutral")
    eager = make.sweep("eager-attention", {**sizes, 2**14: None})
    make.write_metrics(root / "metrics", *documents, timed, eager)
    return build_plots(load_report_data(root / "metrics", root / "runs"), PAPER)


def test_everything_is_drawn_where_there_is_data_in_two_formats(complete):
    found = complete
    assert [plot.slug for plot in found.plots] == [
        "success-by-tier-bench",
        "success-against-cost-bench",
        "learning-curves-bench",
        "peak-memory",
        "time",
    ]
    assert found.missing == ()
    for plot in found.plots:
        assert plot.alt
        assert plot.caption
        root = ET.fromstring(found.files[plot.svg])
        assert root.tag.endswith("svg")
        assert root.find("{http://www.w3.org/2000/svg}title").text == plot.title
        png = found.files[plot.png]
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(png[16:20], "big") == 1120  # wide enough for text at half of it


def test_texts_say_what_the_pictures_show(complete):
    plots = {plot.slug: plot for plot in complete.plots}
    memory = plots["peak-memory"].alt
    assert "eager-attention (CUDA)" in memory
    assert "out of memory at 16384" in memory
    assert "the paper's eager-attention: 28.06 GB at 4096, out of memory at 8192" in memory
    assert "the paper's windowed: 22.52 GB at 4096, 25.53 GB at 8192" in memory
    assert "windowed 0.792 at" in plots["success-against-cost-bench"].alt
    assert "1: 4; 2: 4" in plots["success-by-tier-bench"].caption
    assert "running mean" in plots["learning-curves-bench"].caption


def test_without_runs_and_sweeps_the_missing_is_named_and_the_paper_still_drawn(
    load, make, monkeypatch
):
    """The plot itself says that ours is not measured: its SVG holds text as text for this test."""
    from harness.reporting import plots_style

    monkeypatch.setitem(plots_style._STYLE, "svg.fonttype", "none")
    found = build_plots(load(*make.three_methods()), PAPER)
    assert [plot.slug for plot in found.plots] == [
        "success-by-tier-bench",
        "success-against-cost-bench",
        "peak-memory",
    ]
    assert [item.split(":")[0] for item in found.missing] == [
        "Learning curves of bench",
        "Time against length",
    ]
    assert "Only the paper's figures are shown" in found.plots[-1].caption
    words = b"Our own peak memory is not measured yet:"
    assert words in found.files["peak-memory.svg"]
    measured = build_plots(ReportData([cell_of(make.sweep("windowed", {4096: 2e9}))]), PAPER)
    assert words not in measured.files["peak-memory.svg"]


def test_without_sweeps_and_papers_there_is_no_memory_plot(make):
    found = build_plots(ReportData([cell_of(make.document("m", "b", 1, {}))]))
    assert found.plots == ()
    assert [item.split(":")[0] for item in found.missing][-2:] == [
        "Peak memory against length",
        "Time against length",
    ]


def test_a_band_needs_two_seeds_and_lacking_curves_are_named(load, make, tmp_path):
    documents = make.three_methods()
    with_runs(make, tmp_path / "runs", documents[:2])
    found = build_plots(load(*documents))
    curves = next(plot for plot in found.plots if plot.slug.startswith("learning"))
    assert "windowed (2 of 3 seeds)" in curves.caption
    assert "plain (1 of 1 seeds)" in curves.caption


NAMES = ["$x^{", "_hidden", "\\frac{", "名前", "a" * 300, "&<>\"'", "a\nb\x1b"]


def test_any_name_can_be_drawn(make):
    cells = []
    for name in NAMES:
        made = make.success(name, 2, [1, 0, 1, 1])
        rows = [{"update": float(i), "reward": i / 9} for i in range(9)]
        cells.append(cell_of(made, history=rows))
    found = build_plots(ReportData(cells))
    assert [plot.slug for plot in found.plots][-1] == "learning-curves-bench"
    for plot in found.plots:
        ET.fromstring(found.files[plot.svg])


def test_extreme_numbers_are_left_out_of_axes(load, make):
    made = make.success("plain", 1, [1, 0, 1, 0])
    made["metrics"]["average_cost"]["value"] = 1.7e308
    sweep = make.sweep("plain", {256: 1.7e308, 512: 0.0, 1024: 5e6})
    found = build_plots(load(made, sweep))
    assert "success-by-tier-bench" in [plot.slug for plot in found.plots]
    assert any("Success against cost of bench" in item for item in found.missing)
    assert "5 MB at 1024" in next(p for p in found.plots if p.slug == "peak-memory").alt


def test_colours_are_okabe_and_itos_and_neighbours_differ_in_marker_and_dashes_too():
    okabe_ito = {
        "#000000",
        "#E69F00",
        "#56B4E9",
        "#009E73",
        "#F0E442",
        "#0072B2",
        "#D55E00",
        "#CC79A7",
    }
    assert set(COLOURS) <= okabe_ito
    made = list(looks([f"m{i}" for i in range(40)]).values())
    assert len({(look.colour, look.marker, str(look.dashes)) for look in made}) == 40
    first = made[:5]
    for of in ("colour", "marker", "dashes"):
        assert len({str(getattr(look, of)) for look in first}) == 5


SCRIPT = """
import sys
from pathlib import Path
from harness.reporting.data import load_report_data
from harness.reporting.plots import build_plots
import hashlib
found = build_plots(load_report_data(Path(sys.argv[1]), None))
for name, data in sorted(found.files.items()):
    print(name, hashlib.sha256(data).hexdigest())
print([name for name in ("torch", "mlflow", "matplotlib.pyplot", "tkinter") if name in sys.modules])
"""


def drawn_by_another(directory, metrics, **env):
    kept = {
        name: value for name, value in os.environ.items() if name not in {"DISPLAY", "MPLBACKEND"}
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(metrics)],
        cwd=directory,
        env={**kept, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_backend_display_or_setting_of_the_user_changes_a_byte(make, tmp_path):
    """H6: plots render without a display and with MPLBACKEND set to something interactive."""
    metrics = make.write_metrics(tmp_path / "metrics", make.success("plain", 42, [1, 0, 1, 1]))
    plain = tmp_path / "plain"
    mine = tmp_path / "mine"
    for directory in (plain, mine):
        directory.mkdir()
    (mine / "matplotlibrc").write_text("font.size: 30\naxes.facecolor: red\nbackend: TkAgg\n")
    expected = drawn_by_another(plain, metrics, PYTHONHASHSEED="1")
    assert expected.endswith("[]\n")
    assert expected == drawn_by_another(
        mine,
        metrics,
        MPLBACKEND="TkAgg",
        PYTHONHASHSEED="2",
        SOURCE_DATE_EPOCH="1",
        TZ="Asia/Tokyo",
    )


def test_pictures_hold_no_date_and_no_version(complete):
    import matplotlib as mpl
    from PIL import Image

    for name, data in complete.files.items():
        if name.endswith(".svg"):
            assert b"<dc:date>" not in data
            assert b"dc:creator" not in data
            assert mpl.__version__.encode() not in data[:1000]
        else:
            assert set(Image.open(io.BytesIO(data)).info) <= {"dpi"}
