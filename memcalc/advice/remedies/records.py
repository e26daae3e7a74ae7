"""The records of remedies and of changed plans, and goals for them. Sizes are unrounded bytes.

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
    """The figures of one full estimate that changed plans are compared by."""

    plan: Plan
    peak: Peak
    context: Span | None
    fit: Fit | None
    flops: int | None
    """Floating-point operations of one step; ``None``: not counted."""

    @property
    def rung(self) -> str:
        """The name of the highest known memory level, which decides the fit: ``process_used``..."""
        known = (r for r in ("process_used", "reserved") if getattr(self.peak, r) is not None)
        return next(known, "requested")

    @property
    def needed(self) -> int:
        """Bytes needed on the deciding level; for a process, with the largest CUDA context."""
        size: int = getattr(self.peak, self.rung)
        context = self.context
        if self.rung == "process_used" and context is not None and context.likely is not None:
            size += context.high - context.likely
        return size

    @property
    def fits(self) -> bool:
        """True if the plan fits its GPU for sure."""
        return self.fit is not None and self.fit.fits

    def needed_under(self, limit: int) -> int:
        """Return the bytes needed within a limit; on the plan's own GPU, those of its fit."""
        if self.fit is None or self.fit.limit != limit or not self.fit.fits:
            return self.needed
        return self.fit.most


def figures(prediction: Prediction) -> Figures:
    """Return the figures of a prediction by which changed plans are compared."""
    return Figures(**{name: getattr(prediction, name) for name in Figures.__struct_fields__})


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the plan that may need less memory, and its cost."""

    key: str
    title: str
    changes: tuple[Change, ...]
    cost: str
    source: str
    """The source of the statement about the cost."""
    rank: int = 0
    """Cheap ones first: 0 costs nothing, the highest trains something else."""
    name: str = ""
    """A name that tells it from others of its key; empty: its key."""
    unfit: str | None = None
    """Why it cannot be tried on this plan; ``None``: it can."""

    def __str__(self) -> str:
        return self.name or self.key


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A changed plan: the remedies that change it, and its figures from a full estimate."""

    remedies: tuple[Remedy, ...] = ()
    figures: Figures | None = None
    error: str | None = None
    """Why there are no figures."""

    @property
    def remedy(self) -> Remedy:
        """The only remedy of a trial with one remedy."""
        (remedy,) = self.remedies
        return remedy

    def saving(self, before: Figures, rung: str) -> int | None:
        """Return the bytes that the change saves on a memory level such as ``reserved``."""
        if self.figures is None:
            return None
        old, new = getattr(before.peak, rung), getattr(self.figures.peak, rung)
        return old - new if old is not None and new is not None else None

    def extra_flops(self, before: Figures) -> float | None:
        """Return the added operations of a step, as a share; half a batch counts as half."""
        if self.figures is None or not before.flops or self.figures.flops is None:
            return None
        return self.figures.flops / before.flops - 1


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The search for a plan that holds a limit."""

    limit: int
    rung: str
    """The rung held against the limit; ``process_used`` counts the context's high end."""
    trials: tuple[Trial, ...]
    """The plans that were estimated, in order."""
    best: Trial | None
    """The cheapest plan that holds; ``None``: no plan does."""
    ruled_out: int = 0
    """Plans whose weights, gradients and optimizer state alone are too large."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a changed plan has to hold."""

    limit: int
    """Bytes, as they are shown."""
    rung: str
    """The rung or metric that is held against them."""
    holds: Callable[[Figures], bool]
    outside: int | None
    """Least bytes outside the allocator that count too; ``None``: the allocator's bytes decide
    nothing."""


def limit_goal(limit: int, before: Figures) -> Goal:
    """Return the goal to need at most ``limit`` bytes on the deciding memory level."""
    context = before.context if before.rung == "process_used" else None
    return Goal(
        limit=limit,
        rung=before.rung,
        holds=lambda figures: figures.needed <= limit,
        outside=context.low if context is not None else 0,
    )


def fit_goal(before: Figures) -> Goal | None:
    """Return the goal to fit the plan's GPU for sure, or None if the plan does or names no GPU."""
    if before.fit is None or before.fits:
        return None
    return Goal(
        limit=before.fit.limit,
        rung=before.fit.metric,
        holds=lambda figures: figures.fits,
        outside=before.context.low if before.context is not None else 0,
    )
