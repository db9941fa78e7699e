"""All plots of a report, as files by name, with what could not be drawn and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.data import PaperPoint, Plot, ReportData
from harness.reporting.measures import views
from harness.reporting.plots_benchmark import (
    Drawn,
    learning_curves,
    success_against_cost,
    success_by_tier,
)
from harness.reporting.plots_length import peak_memory, time_at_length
from harness.reporting.plots_style import looks, styled


@dataclass(frozen=True)
class Plots:
    """The pictures of a report.

    Args:
        plots: In the order in which a page shows them.
        files: File name -> content.
        missing: One sentence for each plot that there is no data for.
    """

    plots: tuple[Plot, ...]
    files: dict[str, bytes]
    missing: tuple[str, ...]


def build_plots(data: ReportData, points: Sequence[PaperPoint] = ()) -> Plots:
    """Draw what there is data for.

    Args:
        data: The report's.
        points: The paper's figures at sequence lengths.
    """
    with styled():
        outcomes = _draw(data, points)
    plots, files, missing = [], {}, []
    for item in outcomes:
        if isinstance(item, str):
            missing.append(item)
            continue
        svg, png = f"{item.slug}.svg", f"{item.slug}.png"
        files[svg], files[png] = item.svg, item.png
        plots.append(Plot(item.slug, item.title, item.alt, svg, png, item.caption))
    return Plots(tuple(plots), files, tuple(missing))


def _draw(data: ReportData, points: Sequence[PaperPoint]) -> list[Drawn | str]:
    by_method = looks(sorted({*data.methods, *(point.method for point in points)}))
    outcomes: list[Drawn | str] = []
    for view in views(data):
        # A sweep over lengths is one number a length: the plots below are made for it.
        if view.cells and not view.is_sweep:
            outcomes += [
                success_by_tier(view, by_method),
                success_against_cost(view, by_method),
                learning_curves(view, by_method),
            ]
    outcomes.append(peak_memory(data, points, by_method))
    outcomes.append(time_at_length(data, points, by_method))
    return outcomes
