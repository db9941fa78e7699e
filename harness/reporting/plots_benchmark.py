"""Plots of one benchmark: learning curves, success by tier, success against cost.

Each function returns a :class:`Drawn`, or the sentence that says what is missing to draw it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from harness.reporting.data import CellData
from harness.reporting.measures import BenchmarkView, Reference, mean_of, over_seeds
from harness.reporting.plots_style import (
    MAX_SERIES,
    Look,
    legend_below,
    legend_name,
    new_figure,
    plottable,
    reference_lines,
    save,
)
from harness.reporting.tables import BETTER, reference_name
from harness.reporting.text import name_text, sentence_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = ("reward", "success")
"""Columns of a learning curve that are drawn, the first that is there; then the headline metric."""
_SMOOTH_OVER = 24
"""A running mean spans one such part of the updates: what is left are the trends."""


@dataclass(frozen=True)
class Drawn:
    """A plot in both formats.

    Args:
        slug: For file names.
        title: Heading.
        alt: What a person sees in it.
        caption: What is drawn, and what is missing.
        svg: Bytes of the SVG file.
        png: Bytes of the PNG file.
    """

    slug: str
    title: str
    alt: str
    caption: str
    svg: bytes
    png: bytes


def learning_curves(view: BenchmarkView, looks: Mapping[str, Look]) -> Drawn | str:
    """What training rewarded, update by update, with the interval over seeds."""
    curves = {method: _curves(view, method) for method in _drawn_methods(view)}
    curves = {method: found for method, found in curves.items() if found}
    label = name_text(view.label)
    if not curves:
        return (
            f"Learning curves of {label}: no run folder with a learning curve is here "
            "(metrics files hold none); run its cells here to draw them."
        )
    title = f"Learning curves, {label}"
    figure, axes = new_figure(title)
    column = next(iter(curves.values()))[0][0]
    low, high, span = [], [], 1
    for method, found in curves.items():
        window = max(1, max(len(points) for _, points in found) // _SMOOTH_OVER)
        span = max(span, window)
        smooth = [_running_mean(points, window) for _, points in found]
        low += [min(points.values()) for points in smooth]
        high += [max(points.values()) for points in smooth]
        _draw_curve(axes, _name_with_seeds(method, len(smooth)), smooth, looks[method])
    # The band of two seeds is so wide that it would flatten everything else.
    margin = 0.08 * ((max(high) - min(low)) or 1.0)
    axes.set_ylim(min(low) - margin, max(high) + margin)
    axes.set_xlabel("policy updates")
    axes.set_ylabel(f"{name_text(column)} in training")
    legend_below(figure, axes)
    mean = f", running mean of {span} updates" if span > 1 else ""
    caption = (
        f"Mean over seeds of the training {name_text(column)}{mean}; the band is the 95 % interval "
        f"over seeds (cut at the axes). {_without_curve(view, curves)}"
    )
    alt = f"Training {name_text(column)} against updates. " + "; ".join(
        f"{name_text(method)} goes from {_ends(found)}" for method, found in curves.items()
    )
    return Drawn(
        f"learning-curves-{view.slug}", title, alt + ".", caption.strip(), *save(figure, title)
    )


def _drawn_methods(view: BenchmarkView) -> list[str]:
    return [method for method in view.methods if view.of(method)][:MAX_SERIES]


def _curves(view: BenchmarkView, method: str) -> list[tuple[str, dict[float, float]]]:
    """(column, update -> value) of each seed that has a curve."""
    found = []
    for cell in view.of(method):
        rows = cell.history or []
        column = next(
            (name for name in (*CURVES, view.headline) if any(name in row for row in rows)), None
        )
        if column is not None and (points := _points(rows, column)):
            found.append((column, points))
    return found


def _points(rows: Sequence[Mapping[str, Any]], column: str) -> dict[float, float]:
    points = {}
    for index, row in enumerate(rows):
        x, y = row.get("update", index + 1), row.get(column)
        if _is_number(x) and _is_number(y):
            points[float(x)] = float(y)
    return points


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and plottable(value)


def _running_mean(points: Mapping[float, float], window: int) -> dict[float, float]:
    """Centred; shorter at the ends."""
    xs = sorted(points)
    half = window // 2
    return {
        x: mean_of([points[other] for other in xs[max(0, i - half) : i + half + 1]])
        for i, x in enumerate(xs)
    }


def _draw_curve(axes: Axes, name: str, curves: Sequence[Mapping[float, float]], look: Look) -> None:
    xs = sorted(set(curves[0]).intersection(*curves[1:]))
    found = [over_seeds([points[x] for points in curves]) for x in xs]
    means = [item.mean for item in found if item is not None]
    axes.plot(
        xs,
        means,
        color=look.colour,
        linestyle=look.dashes,
        marker=look.marker,
        markevery=max(1, len(xs) // 8),
        label=name,
    )
    ends = [item.interval for item in found if item is not None and item.interval is not None]
    if len(ends) == len(xs) and len(xs) > 1:
        low, high = [end.low for end in ends], [end.high for end in ends]
        axes.fill_between(xs, low, high, color=look.colour, alpha=0.15, linewidth=0)


def _without_curve(view: BenchmarkView, curves: Mapping[str, Sequence[Any]]) -> str:
    lacking = []
    for method in view.methods:
        missing = len(view.of(method)) - len(curves.get(method, []))
        if missing and view.of(method):
            lacking.append(f"{name_text(method)} ({missing} of {len(view.of(method))} seeds)")
    return f"No run folder here holds the curve of {', '.join(lacking)}." if lacking else ""


def _ends(found: Sequence[tuple[str, Mapping[float, float]]]) -> str:
    def tenth(points: Mapping[float, float], last: bool) -> float:
        xs = sorted(points)
        count = max(1, len(xs) // 10)
        return mean_of([points[x] for x in (xs[-count:] if last else xs[:count])])

    first, last = (mean_of([tenth(points, end) for _, points in found]) for end in (False, True))
    return f"{first:.3g} to {last:.3g}"


def _name_with_seeds(method: str, seeds: int) -> str:
    return f"{legend_name(method)} (n = {seeds})"


def success_by_tier(view: BenchmarkView, looks: Mapping[str, Look]) -> Drawn | str:
    """The headline metric on easier and harder tasks."""
    metric = view.headline
    label = name_text(view.label)
    tiers = view.tiers(metric) if metric else []
    if metric is None or len(tiers) < 2:
        return f"Success by tier of {label}: its metrics have no tiers."
    title = f"{name_text(metric)} by tier, {label}"
    figure, axes = new_figure(title)
    methods = _drawn_methods(view)
    parts = []
    for index, method in enumerate(methods):
        offset = 0.0 if len(methods) == 1 else 0.5 * (index / (len(methods) - 1) - 0.5)
        values = _draw_tiers(axes, view, method, [name for _, name in tiers], offset, looks[method])
        parts.append(f"{name_text(method)} {', '.join(values)}")
    axes.set_xticks(range(len(tiers)), [name_text(tier) for tier, _ in tiers])
    axes.set_xlim(-0.5, len(tiers) - 0.5)
    if view.is_share(name for _, name in tiers):
        axes.set_ylim(-0.04, 1.04)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("tier")
    axes.set_ylabel(_axis(view, metric))
    legend_below(figure, axes)
    sizes = "; ".join(f"{name_text(tier)}: {_tasks(view, name)}" for tier, name in tiers)
    caption = (
        "Mean over seeds with the 95 % interval over seeds (none for a single seed; cut at the axes). "
        f"Tasks a seed by tier: {sizes}."
    )
    alt = f"{title}: " + "; ".join(parts) + "."
    return Drawn(f"success-by-tier-{view.slug}", title, alt, caption, *save(figure, title))


def _draw_tiers(
    axes: Axes,
    view: BenchmarkView,
    method: str,
    metrics: Sequence[str],
    offset: float,
    look: Look,
) -> list[str]:
    xs, ys = [], []
    for position, name in enumerate(metrics):
        found = view.measured(method, name)
        if found is None or not plottable(found.mean):
            continue
        xs.append(position + offset)
        ys.append(found.mean)
        if found.interval is not None and plottable(found.interval.high):
            ends = (found.interval.low, found.interval.high)
            axes.plot([xs[-1]] * 2, ends, color=look.colour, linewidth=1.6, alpha=0.55)
    axes.plot(
        xs,
        ys,
        color=look.colour,
        marker=look.marker,
        linestyle=look.dashes,
        linewidth=1.2,
        label=_name_with_seeds(method, len(view.of(method))),
    )
    return [f"{y:.2f}" for y in ys]


def _tasks(view: BenchmarkView, metric: str) -> str:
    found = view.measured(None, metric)
    if found is None:
        return "none"
    low, high = found.tasks
    return str(low) if low == high else f"{low} to {high}"


def _axis(view: BenchmarkView, metric: str) -> str:
    return f"{name_text(metric)} ({sentence_text(view.unit(metric))})"


def success_against_cost(view: BenchmarkView, looks: Mapping[str, Look]) -> Drawn | str:
    """What success costs: every seed, and the mean of them."""
    metric, cost = view.headline, view.cost
    label = name_text(view.label)
    if metric is None or cost is None or metric == cost:
        return f"Success against cost of {label}: its metrics name no cost."
    title = f"{name_text(metric)} against cost, {label}"
    figure, axes = new_figure(title)
    parts = []
    for method in _drawn_methods(view):
        points = _pairs(view.of(method), cost, metric)
        if not points:
            continue
        look = looks[method]
        x, y = (mean_of(column) for column in zip(*points, strict=True))
        name = _name_with_seeds(method, len(points))
        axes.plot([x], [y], look.marker, color=look.colour, ms=13, mec="white", label=name)
        if len(points) > 1:  # above the means, or one mean would hide another's seeds
            columns = zip(*points, strict=True)
            axes.plot(*columns, look.marker, color=look.colour, mfc="white", ms=6, zorder=3)
        parts.append(f"{name_text(method)} {y:.3g} at {x:.3g}")
    if not parts:
        return f"Success against cost of {label}: no cell has both."
    references = view.references(metric)
    reference_lines(axes, _references(view, references))
    if view.is_share((metric, *(item.metric for item in references))):
        axes.set_ylim(-0.04, 1.09)
    axes.margins(x=0.12)
    axes.set_xlabel(f"{name_text(cost)} ({sentence_text(view.unit(cost))}, {BETTER['minimize']})")
    axes.set_ylabel(_axis(view, metric))
    legend_below(figure, axes)
    caption = "Large: mean over seeds; small and open: one seed each. Dashed: floors and ceilings."
    alt = f"{title}: " + "; ".join(parts) + "."
    return Drawn(f"success-against-cost-{view.slug}", title, alt, caption, *save(figure, title))


def _pairs(cells: Sequence[CellData], cost: str, metric: str) -> list[tuple[float, float]]:
    found = [(cell.value(cost), cell.value(metric)) for cell in cells]
    return [
        (x, y)
        for x, y in found
        if x is not None and y is not None and plottable(x) and plottable(y)
    ]


def _references(view: BenchmarkView, references: Sequence[Reference]) -> list[tuple[str, float]]:
    lines = []
    for reference in references:
        found = view.measured(None, reference.metric)
        if found is not None:
            lines.append((reference_name(reference), found.mean))
    return lines
