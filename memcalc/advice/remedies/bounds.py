"""The least that a plan needs, and the most that remedies can save: they spare runs.

At the same moment of a changed run all that a remedy does not touch is alive as well: so a plan
whose untouched components alone are too large needs no run.
"""

import contextlib
from collections.abc import Iterable

from msgspec.structs import replace

from memcalc.advice.remedies.records import Remedy
from memcalc.errors import MemcalcError
from memcalc.estimation.analytic import least, load_inventory
from memcalc.estimation.fits import cannot_fit, make_device
from memcalc.estimation.question import check, look_up
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component, Phase, Trace, alive, highest, walk
from memcalc.workload import loops

_IN_PASSING = (Component.TEMPORARIES, Component.WORKSPACES)
_OF_FORWARD = (
    *(Component.ACTIVATIONS, Component.HELD, Component.INPUTS, Component.AUTOCAST_COPIES),
    *(Component.KV_CACHE, *_IN_PASSING),
)
_TOUCHED: dict[str, tuple[Component, ...]] = {
    "expandable": (),
    "fused": _IN_PASSING,
    "set_to_none": (Component.GRADIENTS, *_IN_PASSING),
    "in backward": (Component.GRADIENTS, *_IN_PASSING),
    "8-bit states": (Component.OPTIMIZER_STATE, *_IN_PASSING),
    **dict.fromkeys(("outputs", "kv cache", "sdpa", "accumulate", "amp"), _OF_FORWARD),
    **dict.fromkeys(("chunked loss", "checkpointing/2", "checkpointing"), _OF_FORWARD),
}
"""Components that a remedy may make smaller, by its key; what is not listed may change all."""


_OUTPUTS = {"outputs", "kv cache"}
"""Remedies that free what a loop's variable keeps beyond the step."""


def bound_savings(prediction: Prediction, remedies: Iterable[Remedy], kept: int | None) -> int:
    """Return an upper bound of the requested bytes that remedies save at a run's peak.

    ``kept``: those that ``kept_beyond_step`` returns; None: they are not known.
    """
    keys = {one.key for one in remedies}
    if not keys <= _TOUCHED.keys():
        return prediction.peak.requested
    outputs = keys & _OUTPUTS if kept is not None else set()
    touched = {component for key in keys - outputs for component in _TOUCHED[key]}
    saved = sum(size for name, size in prediction.components.items() if name in touched)
    return min(saved + (kept or 0 if outputs else 0), prediction.peak.requested)


def kept_beyond_step(trace: Trace, plan: Plan, phase: Phase) -> int | None:
    """Return forward's bytes at a phase's peak that outlive their step, or None.

    None: the loop keeps no outputs, so others may be freed with them.
    """
    if not loops.of(plan).keep_outputs(plan):
        return None
    ended = {
        ~event for mark, event, storage in walk(trace) if event < 0 and mark.step == storage.step
    }
    there = [trace.storages[one] for one in alive(trace, highest(trace)[phase]) if one not in ended]
    return sum(one.bytes for one in there if one.component in _OF_FORWARD)


class Floor:
    """The least memory of plans of one model, by closed forms: it rules plans out untraced."""

    def __init__(self, plan: Plan) -> None:
        self.inventory: Inventory | None = None
        # The trace of a plan says why its model cannot be built.
        with contextlib.suppress(MemcalcError):
            self.inventory = load_inventory(check(replace(plan, lora=None, quant=None)))

    def least(self, plan: Plan) -> int | None:
        """Return the least bytes of a plan, or None if they are not known."""
        if self.inventory is None:
            return None
        try:
            return least(plan, self.inventory)
        except MemcalcError:
            return None

    def excess(self, plan: Plan) -> int | None:
        """Return the least bytes of a plan that its GPU has no room for, or None if it may fit."""
        size = self.least(plan)
        if size is None or plan.gpu is None:
            return None
        question = look_up(plan)
        device = make_device(question.gpu, question)
        return size if cannot_fit(size, device) else None
