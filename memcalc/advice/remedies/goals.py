"""Goals for a changed plan: a limit, and the figure that is compared with it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from memcalc.advice.remedies.records import Figures


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan has to come to."""

    limit: int
    """Bytes, as they are told."""
    rung: str
    """What is held against them."""
    holds: Callable[[Figures], bool]
    outside: int | None
    """Bytes that count beside what lives in the allocator, at least; ``None``: what lives there
    decides nothing."""


def rung_of(figures: Figures) -> str:
    """The highest rung that is known, which is what decides whether a plan fits."""
    for rung in ("process_used", "reserved"):
        if getattr(figures.peak, rung) is not None:
            return rung
    return "requested"


def needed(figures: Figures) -> int:
    """Bytes on the deciding rung; a process' with the high end of its context."""
    rung = rung_of(figures)
    size: int = getattr(figures.peak, rung)
    context = figures.context
    if rung == "process_used" and context is not None and context.likely is not None:
        size += context.high - context.likely
    return size


def needed_within(figures: Figures, limit: int) -> int:
    """Bytes that a plan needs under a limit; on its GPU as it runs there, its cache given back."""
    fit = figures.fit
    if fit is None or fit.limit != limit or not fit.fits:
        return needed(figures)
    return fit.most


def under(limit: int, before: Figures) -> Goal:
    """To need no more than so many bytes on the deciding rung."""
    rung = rung_of(before)
    context = before.context if rung == "process_used" else None
    return Goal(
        limit=limit,
        rung=rung,
        holds=lambda figures: needed(figures) <= limit,
        outside=context.low if context is not None else 0,
    )


def fitting(before: Figures) -> Goal | None:
    """To fit the plan's GPU for sure; ``None``: the plan does, or names none."""
    if before.fit is None or _fits(before):
        return None
    return Goal(
        limit=before.fit.limit,
        rung=before.fit.metric,
        holds=_fits,
        outside=before.context.low if before.context is not None else 0,
    )


def _fits(figures: Figures) -> bool:
    return figures.fit is not None and figures.fit.fits
