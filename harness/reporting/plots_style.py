"""One look for all plots, and bytes that depend on nothing but what is drawn.

Nothing here goes through pyplot: no backend is chosen, no display is looked for, and no matplotlibrc
of the user changes a line.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.reporting.text import name_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito (2008), without the yellow, which is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (5, 1.2)), (0, (1, 1.2)))
GREY = "#555555"
DARK = "#222222"
"""Of texts beside points: the lighter colours are too light to read."""
MAX_SERIES = 16
"""Methods that one plot shows; with more nobody can tell them apart."""
LARGEST = 1e30
"""Numbers above it are left out: axes overflow long before floats do."""

_LEGEND_ROW = 0.27
"""Inches; a legend of more than three rows makes the picture higher instead of the axes lower."""

_STYLE: dict[str, Any] = {
    # At half width (about 560 of 1120 pixels) the text is still 14 pixels high.
    "figure.figsize": (7.0, 4.7),
    "figure.dpi": 160,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same on every machine
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 13,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "lines.markersize": 7,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "legend.handlelength": 2.6,
    "text.parse_math": False,  # names come from files; "$" in one is no formula
    "svg.hashsalt": "auto-research",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn in every plot of a report: colour, marker and dashes all differ.

    Args:
        colour: Of line and marker.
        marker: matplotlib's.
        dashes: matplotlib's line style.
    """

    colour: str
    marker: str
    dashes: Any


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """One look a method; the combinations repeat after 280."""
    return {
        method: Look(
            COLOURS[index % len(COLOURS)],
            _MARKERS[index % len(_MARKERS)],
            _DASHES[index % len(_DASHES)],
        )
        for index, method in enumerate(methods)
    }


def plottable(value: float | None) -> bool:
    """Whether an axis can show a number."""
    return value is not None and abs(value) <= LARGEST


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib as it ships, with this module's look, whatever the user's settings are."""
    before = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "Agg"  # read on import; a name that it does not know is an error
    try:
        import matplotlib as mpl
    finally:
        if before is None:
            del os.environ["MPLBACKEND"]
        else:
            os.environ["MPLBACKEND"] = before
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        settings: Any = mpl.rcParams  # typed as having known keys only
        settings.update(_STYLE)
        yield


def new_figure(title: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; call it, and everything drawn on it, inside ``styled()``."""
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.add_subplot()
    axes.set_title(title, wrap=True)
    return figure, axes


def legend_below(figure: Figure, axes: Axes) -> None:
    """A legend that covers no data, in as many columns as its longest entry lets stand."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    longest = max(map(len, labels))
    columns = min(len(labels), 3 if longest <= 16 else 2 if longest <= 30 else 1)
    rows = math.ceil(len(labels) / columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + _LEGEND_ROW * max(0, rows - 3))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def legend_name(text: str) -> str:
    """A foreign name for a legend: short, and matplotlib leaves out what begins with ``_``."""
    shown = name_text(text)
    shown = shown if len(shown) <= 30 else shown[:29] + "…"
    return f" {shown}" if shown.startswith("_") else shown


def reference_lines(axes: Axes, lines: Sequence[tuple[str, float]]) -> None:
    """Horizontal lines of floors and ceilings, each with its name; equal ones share a line."""
    values: dict[float, list[str]] = {}
    for name, value in lines:
        if plottable(value):
            values.setdefault(value, []).append(name)
    for value, names in sorted(values.items()):
        axes.axhline(value, color=GREY, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        text = axes.annotate(
            ", ".join(names),
            (0.995, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=11,
            color=GREY,
            annotation_clip=True,
        )
        text.set_in_layout(False)  # a line beyond the axes must not shrink them


def save(figure: Figure, title: str) -> tuple[bytes, bytes]:
    """SVG and PNG without date, version or random ids."""
    svg, png = io.BytesIO(), io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(svg, format="svg", metadata={**nothing, "Title": title})
    figure.savefig(png, format="png", metadata={"Software": None})
    return svg.getvalue(), png.getvalue()
