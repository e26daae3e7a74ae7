"""The top of a page: the verdict, a bar against the card, three figures; and bars of several."""

from collections.abc import Iterator, Sequence

import msgspec

from memcalc.accuracy.compare import pairs as compared
from memcalc.files.results import Run
from memcalc.records.fields import options
from memcalc.records.model import Place
from memcalc.records.prediction import FitVerdict, Prediction
from memcalc.records.trace import Component
from memcalc.report import answer, measured, rows
from memcalc.report.palette import STYLES
from memcalc.units import format_bytes

_CACHED, _OUTSIDE, _FREE = "#B8B8B8", "#7F7F7F", "transparent"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the bar."""

    width: float
    """Percent of the whole."""
    color: str
    text: str


class Hero(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen first."""

    kind: str
    """``fits``, ``close``, ``over`` or ``plain``: how the verdict is colored."""
    verdict: str
    parts: tuple[Part, ...]
    spoken: str
    """The bar in words."""
    figures: tuple[tuple[str, str], ...]
    command: str
    """To type next; empty: none."""


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Bars below each other, on one scale."""

    caption: str
    bars: tuple[tuple[str, tuple[Part, ...], str], ...]
    """The name of each, what it is made of, and its size."""


def side_by_side(predictions: Sequence[Prediction]) -> Bars:
    """What several plans hold at their peaks, the smallest first."""
    ordered = sorted(predictions, key=lambda one: one.peak.requested)
    most = max(ordered[-1].peak.requested, 1)
    return Bars(
        caption="requested bytes at each peak",
        bars=tuple(
            (name, tuple(_components(one, most)), format_bytes(one.peak.requested))
            for one, name in zip(ordered, rows.labels(ordered), strict=True)
        ),
    )


def accuracy(runs: Sequence[Run]) -> Bars:
    """Estimate and measurement of each run, below each other."""
    # Of runs on the CPU, PyTorch's allocator is not known.
    pairs = compared(runs) or compared(runs, "requested")
    most = max((max(found.predicted, found.measured) for _, found in pairs), default=1)
    bars = []
    for name, found in pairs:
        error = f", {measured.percent(found.relative)}" if found.relative is not None else ""
        for what, size, color, end in (
            ("estimate", found.predicted, "#56B4E9", error),
            ("measured", found.measured, "#E69F00", ""),
        ):
            part = Part(width=100 * size / most, color=color, text=what)
            bars.append((f"{name}, {what}", (part,), f"{format_bytes(size)}{end}"))
    return Bars(caption="peak of each run, estimated and measured", bars=tuple(bars))


_KINDS = {
    FitVerdict.FITS: "fits",
    FitVerdict.TIGHT: "close",
    FitVerdict.DOES_NOT_FIT: "over",
}


def hero(prediction: Prediction) -> Hero:
    """The top of the page of one prediction."""
    fit, peak = prediction.fit, prediction.peak
    kind = _KINDS[fit.verdict] if fit is not None else "plain"
    parts = _parts(prediction)
    figures = [(f"peak, in {peak.phase.value}", format_bytes(peak.allocated or peak.requested))]
    if peak.reserved is not None:
        figures.append(("reserved by PyTorch", format_bytes(peak.reserved)))
    if prediction.context is not None and peak.reserved is not None:
        ends = rows.process_range(prediction)
        name, _, ends = rows.would_need(prediction, ends).replace("need ", "need: ").partition(": ")
        figures.append((name, ends))
    plan = prediction.plan
    return Hero(
        kind=kind,
        verdict=answer.headline(prediction).text,
        parts=parts,
        spoken=", ".join(part.text for part in parts),
        figures=tuple(figures),
        command="" if plan.command else f"memcalc explain {options(plan)}",
    )


def _components(prediction: Prediction, whole: int) -> Iterator[Part]:
    for name in STYLES:
        size = prediction.components.get(name)
        if size:
            text = f"{STYLES[name].words} {format_bytes(size)}"
            yield Part(width=100 * size / whole, color=STYLES[name].color, text=text)


def _parts(prediction: Prediction) -> tuple[Part, ...]:
    peak = prediction.peak
    managed = prediction.optimizer_state.total(Place.MANAGED)
    reserved = peak.requested if peak.reserved is None else peak.reserved
    paged = reserved + managed if peak.process_used is not None else reserved
    used = paged if peak.process_used is None else peak.process_used
    top = max(used, prediction.fit.limit) if prediction.fit is not None else used
    held = (
        ("kept by the allocator", reserved - peak.requested, _CACHED),
        ("paged optimizer state", paged - reserved, STYLES[Component.OPTIMIZER_STATE].color),
        ("CUDA context and libraries", used - paged, _OUTSIDE),
        ("free", top - used, _FREE),
    )
    more = (
        Part(width=100 * size / max(top, 1), color=color, text=f"{name} {format_bytes(size)}")
        for name, size, color in held
        if size
    )
    return (*_components(prediction, max(top, 1)), *more)
