"""The records of suggestions. Sizes are unrounded bytes."""

import msgspec

from memcalc.advice.remedies.records import Change, Figures, Remedy
from memcalc.records.display import Answer
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict


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


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A way, and what became of it."""

    way: Way
    figures: Figures | None = None
    """Of the plan that fits; ``None``: nothing does."""
    closest: Figures | None = None
    """Where nothing fits: what was tried and needs least."""
    floor: int | None = None
    """Where nothing was tried: bytes of weights, gradients and optimizer state, too many alone."""
    error: str | None = None
    """Why there is no estimate."""
    speed: Speed | None = None
    """Of all GPUs together; ``None``: not known."""


class Suggestion(Tried, frozen=True, kw_only=True):
    """A way, and the plan that fits by it."""

    remedies: tuple[Remedy, ...] = ()
    """What was added so that it fits, cheapest first."""
    no_speed: str = ""
    """Why the speed is not known."""

    @property
    def tight(self) -> bool:
        """It may fit, with less than a margin to spare."""
        fit = self.closest.fit if self.closest is not None else None
        return fit is not None and fit.verdict is FitVerdict.TIGHT


class Suggestions(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """All ways: those that fit, cheapest first; then those that are tight; then the others."""

    plan: Plan
    gpu: str
    capacity: int
    found: tuple[Suggestion, ...]

    @property
    def fitting(self) -> tuple[Suggestion, ...]:
        """Those with a plan that fits."""
        return tuple(one for one in self.found if one.figures is not None)


class Card(Tried, frozen=True, kw_only=True):
    """A way, and the smallest card that it fits; where none does, ``closest`` is on the largest."""

    lean: bool
    """With checkpointing, and the batch cut into micro-batches."""
    gpu: str = ""
    """The card that was tried and fits; empty: none does."""
    sold_as: int = 0
    """Gigabytes by the name on its box."""
    capacity: int = 0
    """Bytes it offers a process."""


class Cards(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """The smallest card for each way, the way that gives up least first."""

    plan: Plan
    found: tuple[Card, ...]

    @property
    def fitting(self) -> tuple[Card, ...]:
        """Those that fit some card, or several of one."""
        return tuple(one for one in self.found if one.figures is not None)
