"""The training loops, a file each: its ``LOOP`` describes the loop and runs it.

A loop trains on a real and on the simulated GPU. A file imports torch only inside its functions, so
that its ``LOOP`` can be read without torch.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from memcalc.errors import UsageError, unknown
from memcalc.records.plan import Plan
from memcalc.workload import layouts

if TYPE_CHECKING:
    import torch

    from memcalc.workload.job import Job

DEFAULT = "plain"
WITH_A_LAYOUT = ("deepspeed", "pipeline")
"""Loops that are not chosen by name: a script around a layout's library is written so."""


def list_trainable(model: torch.nn.Module, weight_decay: float) -> list[Any]:
    """Return the parameters that train, as one optimizer group."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train, as people write it.

    An optimizer step repeats: the first differs, because optimizer state is made in it; all that
    follow are like the second. Loading comes before, evaluation after.
    """

    name: str
    title: str
    """In a report, such as ``Trainer loop``; empty: not worth a word."""
    summary: str
    """For help texts."""
    run: Callable[[Job, int], None]
    """Train the job for some optimizer steps."""
    keeps_outputs: bool = True
    """What the model returned lives until the next forward has made new ones, where the plan says
    nothing else."""
    fixed: tuple[tuple[str, Any], ...] = ()
    """Fields of a plan that this loop leaves no choice in, with their values."""
    max_grad_norm: float | None = None
    """Gradients are clipped to this norm where the plan says nothing else."""
    wide_embeddings: bool = False
    """8-bit optimizers keep the states of embeddings in 32 bit."""
    groups: Callable[[torch.nn.Module, float], list[Any]] = list_trainable
    """The parameters, or groups of them, that the optimizer is made over; told the weight decay
    that was asked for."""

    def keep_outputs(self, plan: Plan) -> bool:
        """Return True if a run of this plan keeps the model's outputs through backward."""
        return self.keeps_outputs if plan.keep_outputs is None else plan.keep_outputs

    def clip_to(self, plan: Plan) -> float | None:
        """Return the norm that gradients are clipped to, or None if they are not clipped."""
        return self.max_grad_norm if plan.max_grad_norm is None else plan.max_grad_norm


def find(name: str) -> Loop:
    """Return the training loop with this name.

    Raises:
        UsageError: no loop has it.
    """
    if name not in (*names(), *WITH_A_LAYOUT):
        raise unknown("loop", name, names(), hint=f"choose one of {', '.join(names())}.")
    loop: Loop = importlib.import_module(f"{__name__}.{name}").LOOP
    return loop


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all loops that a plan can ask for, the default first."""
    found = {info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg}
    return tuple(sorted(found - {*WITH_A_LAYOUT}, key=lambda name: (name != DEFAULT, name)))


def of(plan: Plan) -> Loop:
    """Return a plan's training loop; raise UsageError if it cannot do what the plan asks.

    Raises:
        UsageError: there is no such loop, or it cannot do what the plan asks.
    """
    driver = layouts.of(plan).loop if plan.loop == DEFAULT else ""
    loop = find(driver or plan.loop)
    for field, value in loop.fixed:
        asked = getattr(plan, field)
        if asked is not None and asked != value:
            raise UsageError(
                f"{loop.title or loop.name} leaves no choice in {field}: it is "
                f"{str(value).lower()} there."
            )
    return loop
