"""What is suggested. Sizes are unrounded bytes."""

from __future__ import annotations

import msgspec

from memcalc.records.plan import Plan
from memcalc.remedies.records import Change, Figures, Remedy


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train, as people speak of it."""

    key: str
    title: str
    changes: tuple[Change, ...]
    """Of the plan that was asked about."""
    costs: str
    """What is given up for it."""
    source: str
    """Where that is known from."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a step may be, worked out and not measured."""

    low: float
    """Samples a second."""
    high: float
    tokens: int | None
    """Of a sample; ``None``: it has none."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A way, and the plan that fits by it."""

    way: Way
    figures: Figures | None
    """``None``: nothing fits."""
    remedies: tuple[Remedy, ...] = ()
    """What was added so that it fits, cheapest first."""
    closest: Figures | None = None
    """Where nothing fits: what was tried and needs least."""
    error: str | None = None
    """Why there is no estimate."""
    speed: Speed | None = None
    no_speed: str = ""
    """Why that is not known."""


class Suggestions(msgspec.Struct, frozen=True, kw_only=True):
    """All ways, those that fit first and the cheapest of them first."""

    plan: Plan
    gpu: str
    capacity: int
    found: tuple[Suggestion, ...]

    @property
    def fitting(self) -> tuple[Suggestion, ...]:
        """Those with a plan that fits."""
        return tuple(one for one in self.found if one.figures is not None)
