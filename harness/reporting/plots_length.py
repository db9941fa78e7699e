"""Memory and time against sequence length, log-log, beside what the paper says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.reporting.data import PaperPoint, ReportData
from harness.reporting.lengths import at_lengths
from harness.reporting.measures import mean_of
from harness.reporting.plots_benchmark import Drawn
from harness.reporting.plots_style import (
    DARK,
    GREY,
    MAX_SERIES,
    Look,
    legend_below,
    legend_name,
    new_figure,
    plottable,
    save,
)
from harness.reporting.text import decimal_bytes, name_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOW = {"cpu": "CPU", "cuda": "CUDA", "simulated": "simulated", None: "how not stated"}

_SMALLEST = 1e-9
"""Bytes or seconds below it are no measurement, and would stretch a logarithmic axis without end."""


@dataclass
class _Series:
    """One method, measured one way.

    Args:
        values: Length -> one value a cell.
        failed: Lengths at which memory ran out in some cell.
    """

    values: dict[int, list[float]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)


def peak_memory(
    data: ReportData, points: Sequence[PaperPoint], looks: Mapping[str, Look]
) -> Drawn | str:
    """Peak memory against sequence length, ours and the paper's."""
    return _against_length(
        data,
        "peak_bytes",
        points,
        looks,
        slug="peak-memory",
        title="Peak memory against length",
        axis="peak memory (GB = 10⁹ bytes)",
        subject="peak memory",
    )


def time_at_length(
    data: ReportData, points: Sequence[PaperPoint], looks: Mapping[str, Look]
) -> Drawn | str:
    """Time against sequence length."""
    return _against_length(
        data,
        "seconds",
        points,
        looks,
        slug="time",
        title="Time against length",
        axis="seconds",
        subject="time",
    )


def _against_length(
    data: ReportData,
    what: str,
    points: Sequence[PaperPoint],
    looks: Mapping[str, Look],
    *,
    slug: str,
    title: str,
    axis: str,
    subject: str,
) -> Drawn | str:
    series = _series(data, what)
    paper = [point for point in points if point.quantity == what]
    nothing = (
        f"{title}: no result here measures {subject} at a sequence length "
        f"(a metric {what}_at_T, as a memory sweep gives it)."
    )
    if not series and not paper:
        return nothing
    figure, axes = new_figure(title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    alts = [
        _draw_series(axes, key, found, looks[key[0]], what)
        for key, found in list(series.items())[:MAX_SERIES]
    ]
    alts += _draw_paper(axes, paper, looks, what)
    _ticks(axes, series, paper, what)
    axes.set_xlabel("sequence length (tokens)")
    axes.set_ylabel(axis)
    if not series:
        _say_unmeasured(axes, subject)
    legend_below(figure, axes)
    caption = (
        _caption(series, paper) if series else f"{nothing} Only the paper's figures are shown."
    )
    alt = f"{title}, both axes logarithmic. " + "; ".join(alts) + "."
    return Drawn(slug, title, alt, caption, *save(figure, title))


def _series(data: ReportData, what: str) -> dict[tuple[str, str | None], _Series]:
    """Of each method and way of measuring; cells of all seeds together."""
    found: dict[tuple[str, str | None], _Series] = {}
    for cell in data.cells:
        for point in at_lengths(cell, what):
            positive = (
                plottable(point.value) and point.value is not None and point.value > _SMALLEST
            )
            if not positive and not point.out_of_memory:
                continue
            one = found.setdefault((cell.method, point.how), _Series())
            if positive and point.value is not None:
                one.values.setdefault(point.tokens, []).append(point.value)
            else:
                one.failed.add(point.tokens)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "")))


def _draw_series(
    axes: Axes, key: tuple[str, str | None], found: _Series, look: Look, what: str
) -> str:
    method, how = key
    xs = sorted(found.values)
    ys = [mean_of(found.values[x]) for x in xs]
    name = f"{legend_name(method)} ({HOW[how]})"
    filled = "white" if how == "simulated" else look.colour
    axes.plot(
        xs, ys, color=look.colour, marker=look.marker, linestyle=look.dashes, mfc=filled, label=name
    )
    told = ", ".join(f"{_value(y, what)} at {x}" for x, y in zip(xs, ys, strict=True))
    for tokens in sorted(found.failed - set(xs)):
        _mark_out_of_memory(axes, tokens, look.colour, f"{legend_name(method)}:\nout of memory")
        told += f"{', ' if told else ''}out of memory at {tokens}"
    return f"{name_text(method)} ({HOW[how]}): {told}"


def _draw_paper(
    axes: Axes, points: Sequence[PaperPoint], looks: Mapping[str, Look], what: str
) -> list[str]:
    told = []
    for method in sorted({point.method for point in points}):
        look = looks[method]
        own = sorted((p for p in points if p.method == method), key=lambda point: point.tokens)
        known = [(p.tokens, p.value) for p in own if p.value is not None]
        if known:
            axes.plot(
                *zip(*known, strict=True),
                color=look.colour,
                marker=look.marker,
                ms=11,
                mfc="none",
                mew=2,
                linestyle="none",
                zorder=4,
                label=f"paper: {legend_name(method)}",
            )
        words = [f"{_value(value, what)} at {tokens}" for tokens, value in known]
        for point in own:
            if point.value is None:
                text = f"paper: {legend_name(method)},\nout of memory"
                _mark_out_of_memory(axes, point.tokens, look.colour, text)
                words.append(f"out of memory at {point.tokens}")
        told.append(f"the paper's {name_text(method)}: {', '.join(words)}")
    _label_paper(axes, points, what)
    return told


def _label_paper(axes: Axes, points: Sequence[PaperPoint], what: str) -> None:
    """Numbers beside the points, so that they clear each other on an axis over decades, too.

    A length's only point has its number above; of two, the upper one's goes up and the lower's down.
    """
    by_length: dict[int, list[float]] = {}
    for point in points:
        if point.value is not None:
            by_length.setdefault(point.tokens, []).append(point.value)
    for tokens, values in by_length.items():
        for rank, value in enumerate(sorted(values)):
            alone = len(values) == 1
            downwards = rank == 0 and not alone
            axes.annotate(
                _value(value, what),
                (tokens, value),
                xytext=(0 if alone else -8, -7 if downwards else 9),
                textcoords="offset points",
                ha="center" if alone else "right",
                va="top" if downwards else "bottom",
                fontsize=12,
                color=DARK,
            )


def _mark_out_of_memory(axes: Axes, tokens: int, colour: str, text: str) -> None:
    """A cross at the upper edge: there is no height to give it."""
    from matplotlib.transforms import blended_transform_factory

    place = blended_transform_factory(axes.transData, axes.transAxes)
    axes.plot([tokens], [0.95], "x", color=colour, ms=13, mew=3.5, transform=place, clip_on=False)
    axes.annotate(
        text,
        (tokens, 0.95),
        xycoords=place,
        xytext=(-13, 4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=12,
        color=DARK,
    )


def _ticks(
    axes: Axes,
    series: Mapping[tuple[str, str | None], _Series],
    paper: Sequence[PaperPoint],
    what: str,
) -> None:
    """Ticks at the measured lengths, room for labels, and plain numbers instead of powers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    lengths = sorted(
        {point.tokens for point in paper}
        | {x for found in series.values() for x in (*found.values, *found.failed)}
    )
    values = [point.value for point in paper if point.value is not None]
    values += [y for found in series.values() for ys in found.values.values() for y in ys]
    axes.set_xlim(lengths[0] / 2**0.75, lengths[-1] * 2**0.4)
    axes.xaxis.set_major_locator(FixedLocator([float(x) for x in _thinned(lengths)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if x < 1e6 else f"{x:.3g}"))
    if not values:
        return
    low, high = min(values), max(values)
    crosses = any(p.value is None for p in paper) or any(s.failed for s in series.values())
    axes.set_ylim(low / 1.3, high * ((high / low) ** 0.18 * 1.35 if crosses else 1.3))
    within = (1, 1.5, 2, 2.5, 3, 4, 5, 7) if high / low < 4 else (1, 2, 5)
    axes.yaxis.set_major_locator(LogLocator(subs=within if high / low < 50 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    scale = 1e9 if what == "peak_bytes" else 1.0
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y / scale:g}"))


def _thinned(lengths: Sequence[int]) -> list[int]:
    """At most seven labels, the last one among them."""
    step = math.ceil(len(lengths) / 7)
    return list(lengths[::-1][::step][::-1])


def _value(value: float, what: str) -> str:
    if what == "seconds":
        return f"{value:.3g} s"
    return decimal_bytes(value)


def _say_unmeasured(axes: Axes, subject: str) -> None:
    axes.text(
        0.03,
        0.04,
        f"Our own {subject} is not measured yet:\nonly the paper's figures are shown.",
        transform=axes.transAxes,
        fontsize=13,
        color=GREY,
        va="bottom",
        bbox={"facecolor": "white", "edgecolor": GREY, "boxstyle": "round,pad=0.4"},
    )


def _caption(series: Mapping[tuple[str, str | None], _Series], paper: Sequence[PaperPoint]) -> str:
    ways = sorted({HOW[how] for _, how in series})
    text = f"Mean over cells; measured: {', '.join(ways)}. Simulated points are open."
    if paper:
        text += " Large and open: the paper's figures, of another model and machine."
    return text
