"""The top of a page: the verdict, one bar against the card, three figures and the next command."""

from __future__ import annotations

import msgspec

from memcalc.advice.explain.command_line import options
from memcalc.records.model import Place
from memcalc.records.prediction import FitVerdict, Prediction
from memcalc.records.storage import Component
from memcalc.report import answer, rows
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
    """``fits``, ``close``, ``over`` or ``plain``: how the verdict is coloured."""
    verdict: str
    parts: tuple[Part, ...]
    spoken: str
    """The bar in words."""
    figures: tuple[tuple[str, str], ...]
    command: str
    """To type next; empty: none."""


_KINDS = {
    FitVerdict.FITS: "fits",
    FitVerdict.TIGHT: "close",
    FitVerdict.DOES_NOT_FIT: "over",
}


def hero(prediction: Prediction) -> Hero:
    """The top of the page of one prediction."""
    fit, peak = prediction.fit, prediction.peak
    kind = _KINDS.get(fit.verdict, "plain") if fit is not None and fit.verdict else "plain"
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


def _parts(prediction: Prediction) -> tuple[Part, ...]:
    peak = prediction.peak
    held = [
        (rows.component_word(name), prediction.components[name], STYLES[name].color)
        for name in STYLES
        if prediction.components.get(name)
    ]
    top = peak.requested
    if peak.reserved is not None:
        held.append(("kept by the allocator", peak.reserved - peak.requested, _CACHED))
        top = peak.reserved
    managed = prediction.optimizer_state.total(Place.MANAGED)
    if peak.process_used is not None and managed:
        held.append(("paged optimizer state", managed, STYLES[Component.OPTIMIZER_STATE].color))
        top += managed
    if peak.process_used is not None:
        held.append(("CUDA context and libraries", peak.process_used - top, _OUTSIDE))
        top = peak.process_used
    if prediction.fit is not None and prediction.fit.limit > top:
        held.append(("free", prediction.fit.limit - top, _FREE))
        top = prediction.fit.limit
    return tuple(
        Part(width=100 * size / max(top, 1), color=color, text=f"{name} {format_bytes(size)}")
        for name, size, color in held
        if size
    )
