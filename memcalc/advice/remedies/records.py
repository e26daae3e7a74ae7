"""The records of remedies and their trials, and goals for changed plans. Sizes are unrounded bytes.

A remedy saves the difference of two full estimates.
"""

from collections.abc import Callable

import msgspec

from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, Peak, Prediction, Span
from memcalc.records.values import Scalar

Change = tuple[str, Scalar | tuple[tuple[str, Scalar], ...]]
"""A field of the plan, and its new value."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one full estimate said."""

    plan: Plan
    peak: Peak
    context: Span | None
    fit: Fit | None
    flops: int | None
    """Of one step; ``None``: not counted."""


def figures(prediction: Prediction) -> Figures:
    """What remedies are compared by."""
    return Figures(**{name: getattr(prediction, name) for name in Figures.__struct_fields__})


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the plan that may need less memory, and what it costs."""

    key: str
    title: str
    changes: tuple[Change, ...]
    cost: str
    source: str
    """Where the statement about the cost is from."""
    rank: int
    """Cheap ones first: 0 costs nothing, the highest trains something else."""
    name: str = ""
    """What it is called beside others; empty: its key."""
    unfit: str | None = None
    """Why it cannot be tried on this plan; ``None``: it can."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Some remedies together, estimated in full."""

    remedies: tuple[str, ...]
    """Their names."""
    figures: Figures | None
    error: str | None = None
    """Why there are no figures."""

    def saved(self, before: Figures, rung: str) -> int | None:
        """Bytes this needs less than the plan as it was; negative: more."""
        if self.figures is None:
            return None
        old, new = getattr(before.peak, rung), getattr(self.figures.peak, rung)
        return old - new if old is not None and new is not None else None

    def more_flops(self, before: Figures) -> float | None:
        """Operations a step needs more, as a share of what it needed; half a batch is half."""
        if self.figures is None or not before.flops or self.figures.flops is None:
            return None
        return self.figures.flops / before.flops - 1


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A remedy and what it buys by itself."""

    remedy: Remedy
    trial: Trial


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The way to a plan that holds a limit."""

    limit: int
    rung: str
    """What was held against the limit; ``process_used`` counts the context's high end."""
    trials: tuple[Trial, ...]
    """What was estimated, in order."""
    best: Trial | None
    """The cheapest found that holds; ``None``: nothing did."""
    remedies: tuple[Remedy, ...] = ()
    """Those of ``best``, cheapest first."""
    ruled_out: int = 0
    """Plans whose weights, gradients and optimizer state alone are too large."""


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


def within(limit: int, before: Figures) -> Goal:
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
