"""The records of remedies and of their trials. Sizes are unrounded bytes.

A remedy's saving is the difference of two full estimates.
"""

from __future__ import annotations

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
    return Figures(
        plan=prediction.plan,
        peak=prediction.peak,
        context=prediction.context,
        fit=prediction.fit,
        flops=prediction.flops,
    )


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
