"""The records of suggestions. Sizes are unrounded bytes."""

import msgspec

from memcalc.advice.remedies.records import Figures, Remedy, Trial
from memcalc.records.display import Answer
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The range of a step's speed, calculated and not measured."""

    low: float
    """Samples a second."""
    high: float
    tokens: int | None
    """Tokens of a sample; ``None``: it has none."""


class Suggestion(Trial, frozen=True, kw_only=True):
    """A way to train, and the plan that fits by it with the remedies it needs.

    ``figures`` is None where nothing fits.
    """

    way: Remedy
    closest: Figures | None = None
    """The nearest plan that was tried where nothing fits."""
    floor: int | None = None
    """Bytes of weights, gradients and optimizer state that alone are too many to try anything."""
    speed: Speed | None = None
    """Speed of all GPUs together; ``None``: not known."""
    no_speed: str = ""
    """Why the speed is not known."""

    @property
    def tight(self) -> bool:
        """True if it may fit, with less than a margin to spare."""
        fit = self.closest.fit if self.closest is not None else None
        return fit is not None and fit.verdict is FitVerdict.TIGHT


class Suggestions(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """The ways to train on a GPU, those that fit first; or on the smallest card for each way."""

    plan: Plan
    gpu: str | None = None
    """The GPU to fit; ``None``: each plan that fits names its own card."""
    capacity: int = 0
    """Bytes of the GPU to fit."""
    found: tuple[Suggestion, ...]

    @property
    def fitting(self) -> tuple[Suggestion, ...]:
        """The ways with a plan that fits."""
        return tuple(one for one in self.found if one.figures is not None)

    @property
    def nearest(self) -> Suggestion | None:
        """The way that fits and is most like the plan; None: nothing fits.

        It trains adapters where the plan does, over a quantized base where the plan has one; of
        several it is the first.
        """

        def differs(one: Suggestion) -> tuple[bool, bool]:
            assert one.figures is not None
            new, old = one.figures.plan, self.plan
            return bool(new.adapters) != bool(old.adapters), bool(new.scheme) != bool(old.scheme)

        return min(self.fitting, key=differs, default=None)
