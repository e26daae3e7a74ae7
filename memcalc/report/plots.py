"""Pictures of memory, drawn by matplotlib, readable in gray and without color vision."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memcalc import untrusted_text
from memcalc.accuracy.compare import pairs as compared
from memcalc.advice.explain.timeline import Timeline
from memcalc.errors import UsageError
from memcalc.files.results import Run
from memcalc.records.prediction import Fit, Prediction
from memcalc.report import drawing, rows
from memcalc.report.measured import percent
from memcalc.report.rows import STYLES
from memcalc.units import format_bytes, unit_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOMENTS = 800
"""More than a picture has columns of pixels; each that is drawn is one that happened."""
_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "memcalc", "hatch.linewidth": 0.5, "font.size": 9}
_BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}


def timeline(line: Timeline, title: str, fit: Fit | None = None) -> Figure:
    """Draw a step's memory as stacked bands by component, with allocator levels and GPU limit."""
    shown = drawing.whole(line, fit, _MOMENTS)
    figure, axes = _make_figure(9.5, 4.2)
    unit, count = shown.unit.bytes, len(shown.line.requested)

    def divide(levels: Sequence[int]) -> list[float]:
        return [level / unit for level in levels]

    for band in shown.bands:
        axes.stairs(
            divide(band.top), baseline=divide(band.floor), fill=True, label=band.style.words,
            facecolor=band.style.color, hatch=band.style.hatch, edgecolor="#00000066", lw=0.2,
        )  # fmt: skip
    for (name, levels), dashes in zip(shown.levels.items(), ("-", "--"), strict=False):
        axes.stairs(divide(levels), baseline=None, color="k", lw=0.9, ls=dashes, label=name)
    if shown.limit is not None:
        label = untrusted_text.picture(f"{shown.gpu}: {format_bytes(shown.limit)}")
        axes.axhline(shown.limit / unit, color="#a3261b", lw=1, ls=(0, (8, 4)), label=label)
    for one in shown.line.phases:
        axes.axvline(one.begin, color="black", lw=0.6, ls=":")
    level = shown.wide_phases(12)
    for one in shown.wide_phases(50):
        axes.annotate(
            one.phase.value, ((one.begin + one.end) / 2, 1.0), (0, -2),
            xycoords=("data", "axes fraction"), textcoords="offset points", ha="center", va="top",
            rotation=0 if one in level else 90,
        )  # fmt: skip
    left = shown.line.peak > count / 2
    height = shown.line.requested[shown.line.peak]
    axes.annotate(
        f"peak {format_bytes(height)}", (shown.line.peak, height / unit), (-60 if left else 60, 12),
        textcoords="offset points", ha="right" if left else "left",
        arrowprops={"arrowstyle": "->", "lw": 0.8},
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip
    events = f"{shown.line.events:,} allocations and frees of one step, in order"
    axes.set(title=untrusted_text.picture(title), xlabel=events, ylabel=shown.unit.name, xticks=[])
    axes.set_xlim(0, count)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.22)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], **_BESIDE)
    return figure


def optimizers(predictions: Sequence[Prediction]) -> Figure:
    """Draw a stacked bar of each plan's components at the peak, the smallest first."""
    ordered = sorted(predictions, key=lambda p: p.peak.requested)
    figure, axes = _make_figure(9.5, 1.0 + 0.36 * len(ordered))
    unit = unit_for(ordered[-1].peak.requested)
    places = range(len(ordered))
    floor = [0.0] * len(ordered)
    for component, style in STYLES.items():
        sizes = [one.components.get(component, 0) / unit.bytes for one in ordered]
        if any(sizes):
            axes.barh(
                places, sizes, left=floor, color=style.color, hatch=style.hatch,
                edgecolor="#00000088", linewidth=0.3, label=style.words,
            )  # fmt: skip
            floor = [low + size for low, size in zip(floor, sizes, strict=True)]
    texts = [format_bytes(one.peak.requested) for one in ordered]
    _finish_bars(axes, rows.labels(ordered), texts, floor)
    axes.set(xlabel=f"requested at the peak, {unit.name}")
    return figure


def accuracy(runs: Sequence[Run], rung: str = "allocated") -> Figure:
    """Draw each run's estimated and measured peak as two bars, with the error."""
    pairs = compared(runs, rung)
    if not pairs:
        raise UsageError("No run has both an estimate and a measurement: nothing to compare.")
    figure, axes = _make_figure(9.5, 1.0 + 0.5 * len(pairs))
    unit = unit_for(max(found.measured for _, found in pairs))
    for shift, label, sizes, color, hatch in (
        (-0.2, "estimate", [found.predicted for _, found in pairs], "#56B4E9", ""),
        (0.2, "measured", [found.measured for _, found in pairs], "#E69F00", "//"),
    ):
        axes.barh(
            [place + shift for place in range(len(pairs))], [size / unit.bytes for size in sizes],
            height=0.38, color=color, hatch=hatch, edgecolor="black", linewidth=0.4, label=label,
        )  # fmt: skip
    errors = [percent(d.relative) if d.relative is not None else "n/a" for _, d in pairs]
    highest = [max(found.predicted, found.measured) / unit.bytes for _, found in pairs]
    _finish_bars(axes, [name for name, _ in pairs], errors, highest)
    axes.set(xlabel=f"peak {rung}, {unit.name}")
    return figure


def _finish_bars(
    axes: Any, labels: Sequence[str], texts: Sequence[str], ends: Sequence[float]
) -> None:
    """Label the bars, write a text at the end of each, and add a legend."""
    for place, (text, end) in enumerate(zip(texts, ends, strict=True)):
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(labels)), list(map(untrusted_text.picture, labels)))
    axes.invert_yaxis()
    axes.set_xlim(0, max(ends) * 1.14)
    axes.legend(**_BESIDE)


def save(figure: Figure, format: str) -> bytes:
    """Return a figure as the bytes of an image file, reproducibly."""
    import matplotlib

    buffer = io.BytesIO()
    dated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(
            buffer, format=format, metadata=dated.get(format), dpi=150, bbox_inches="tight"
        )
    return buffer.getvalue()


@functools.cache
def _notebook_figure() -> type[Figure]:
    """Return a Figure class that notebooks show without pyplot."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            return save(self, "png")

    return Shown


def _make_figure(width: float, height: float) -> tuple[Figure, Any]:
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        figure = _notebook_figure()(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
