"""Pictures of memory, drawn by matplotlib, readable in gray and without color vision."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memcalc import untrusted_text
from memcalc.accuracy.compare import pairs as compared
from memcalc.advice.explain.timeline import Timeline, thin
from memcalc.errors import UsageError
from memcalc.files.results import Run
from memcalc.records.prediction import Prediction
from memcalc.report import rows
from memcalc.report.measured import percent
from memcalc.report.rows import STYLES, stacked
from memcalc.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOMENTS = 800
"""More than a picture has columns of pixels; each that is drawn is one that happened."""
_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "memcalc", "hatch.linewidth": 0.5, "font.size": 9}


def timeline(line: Timeline, title: str) -> Figure:
    """A step as stacked bands, one a component, with phases marked and the allocator's lines."""
    figure, axes = _figure(9.5, 4.2)
    shown = thin(line, _MOMENTS)
    unit, name = _unit(max(shown.reserved or shown.requested))
    moments = range(len(shown.requested) + 1)
    for style, *edges in stacked(shown):
        low, high = ([level / unit for level in (*edge, edge[-1])] for edge in edges)
        axes.fill_between(
            moments, low, high, step="post", label=style.words, facecolor=style.color,
            hatch=style.hatch, edgecolor="#00000066", linewidth=0.2,
        )  # fmt: skip
    for label, levels, dashes in (
        ("allocated", shown.allocated, "-"),
        ("reserved", shown.reserved, "--"),
    ):
        if levels is not None:
            heights = [level / unit for level in (*levels, levels[-1])]
            axes.step(moments, heights, "k", where="post", lw=0.9, ls=dashes, label=label)
    _mark_phases(axes, shown)
    _mark_peak(axes, shown, unit)
    axes.set(
        title=untrusted_text.picture(title),
        xlabel=f"{line.events:,} allocations and frees of one step, in order",
    )
    axes.set(ylabel=name, xticks=[])
    axes.set_xlim(0, len(shown.requested))
    axes.set_ylim(0, axes.get_ylim()[1] * 1.22)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False
    )
    return figure


def optimizers(predictions: Sequence[Prediction]) -> Figure:
    """What several plans hold at their peaks, side by side; the smallest first."""
    ordered = sorted(predictions, key=lambda p: p.peak.requested)
    figure, axes = _figure(9.5, 1.0 + 0.36 * len(ordered))
    unit, name = _unit(ordered[-1].peak.requested)
    places = range(len(ordered))
    floor = [0.0] * len(ordered)
    for component, style in STYLES.items():
        sizes = [prediction.components.get(component, 0) / unit for prediction in ordered]
        if any(sizes):
            axes.barh(
                places, sizes, left=floor, color=style.color, hatch=style.hatch,
                edgecolor="#00000088", linewidth=0.3, label=style.words,
            )  # fmt: skip
            floor = [low + size for low, size in zip(floor, sizes, strict=True)]
    for row, prediction in enumerate(ordered):
        axes.annotate(
            format_bytes(prediction.peak.requested), (floor[row], row), (4, 0),
            textcoords="offset points", va="center",
        )  # fmt: skip
    axes.set_yticks(places, list(map(untrusted_text.picture, rows.labels(ordered))))
    axes.invert_yaxis()
    axes.set(xlabel=f"requested at the peak, {name}")
    axes.set_xlim(0, max(floor) * 1.14)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def accuracy(runs: Sequence[Run], rung: str = "allocated") -> Figure:
    """Estimate and measurement of each run, as pairs of bars with the error in words."""
    pairs = [(untrusted_text.picture(name), found) for name, found in compared(runs, rung)]
    if not pairs:
        raise UsageError("No run has both an estimate and a measurement: nothing to compare.")
    figure, axes = _figure(9.5, 1.0 + 0.5 * len(pairs))
    unit, name = _unit(max(found.measured for _, found in pairs))
    places = range(len(pairs))
    for shift, key, color, hatch in (
        (-0.2, "predicted", "#56B4E9", ""),
        (0.2, "measured", "#E69F00", "//"),
    ):
        sizes = [getattr(found, key) / unit for _, found in pairs]
        axes.barh(
            [place + shift for place in places], sizes, height=0.38, color=color, hatch=hatch,
            edgecolor="black", linewidth=0.4, label="estimate" if key == "predicted" else key,
        )  # fmt: skip
    for place, (_, found) in enumerate(pairs):
        error = percent(found.relative) if found.relative is not None else "n/a"
        high = max(found.predicted, found.measured) / unit
        axes.annotate(error, (high, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(list(places), [label for label, _ in pairs])
    axes.invert_yaxis()
    axes.set(xlabel=f"peak {rung}, {name}")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.1)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def save(figure: Figure, format: str) -> bytes:
    """The picture as a file's bytes; the same picture gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    dated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(
            buffer, format=format, metadata=dated.get(format), dpi=150, bbox_inches="tight"
        )
    return buffer.getvalue()


@functools.cache
def _shown() -> type[Figure]:
    """A figure that notebooks show, whether or not pyplot was imported there."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            return save(self, "png")

    return Shown


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        figure = _shown()(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _mark_phases(axes: Any, line: Timeline) -> None:
    whole = len(line.requested)
    for stretch in line.phases:
        axes.axvline(stretch.begin, color="black", lw=0.6, ls=":")
        middle = (stretch.begin + stretch.end) / 2
        if stretch.end - stretch.begin > whole / 50:
            axes.annotate(
                stretch.phase.value, (middle, 1.0), (0, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="center", va="top", fontsize=9,
                rotation=0 if stretch.end - stretch.begin > whole / 12 else 90,
            )  # fmt: skip


def _mark_peak(axes: Any, line: Timeline, unit: int) -> None:
    at = line.peak
    height = line.requested[at] / unit
    left = at > len(line.requested) / 2
    axes.annotate(
        f"peak {format_bytes(line.requested[at])}", (at, height), (-60 if left else 60, 12),
        textcoords="offset points", ha="right" if left else "left", fontsize=9,
        arrowprops={"arrowstyle": "->", "lw": 0.8},
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _unit(size: int) -> tuple[int, str]:
    return (GIB, "GiB") if size >= 2 * GIB else (MIB, "MiB")
