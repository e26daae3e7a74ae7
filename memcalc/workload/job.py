"""A loop's job: a program whose model is on a device, real or simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import torch

from memcalc.records.trace import Phase
from memcalc.workload.inputs import Batch
from memcalc.workload.layouts import Layout
from memcalc.workload.precision import Precision


class Watch(Protocol):
    """An observer of phases and steps."""

    def phase(self, phase: Phase, step: int) -> contextlib.AbstractContextManager[None]:
        """Enter a phase; ``step`` counts from 0."""
        ...


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a loop needs; model and optimizer are already on the device."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], Batch]
    """Makes one micro-batch on the device."""
    samples: Any
    """In one micro-batch; a number or a symbol."""
    device: str
    """By the name PyTorch knows it."""
    precision: Precision
    layout: Layout
    """How the model is spread over GPUs."""
    options: dict[str, Any] = {}
    """Arguments of the layout's wrapper, where the loop hands them on."""
    exchanges_each: bool = False
    """Gradients are exchanged with every micro-batch."""
    grad_accum: int = 1
    compile: str | None = None
    """Mode of ``torch.compile``; ``None``: the model runs as it is."""
    max_grad_norm: float | None = None
    set_to_none: bool = True
    keep_outputs: bool = True
    """What the model returned lives until the next forward has made new outputs."""
    kv_cache: bool | None = None
    """``config.use_cache`` as the plan has it; ``None``: it says nothing."""
    restore: Callable[[], None] | None = None
    """Loads the optimizer's state of a checkpoint; ``None``: the run starts afresh."""
    eval_batches: int = 0
    kept: dict[str, Any] = {}
    """What a loop made of the job and goes on with, should it run again."""
    simulated: bool = False
    """No data and no numbers: of an evaluation, the batches in the middle are like their
    neighbors and only leave behind what is kept of them."""

    def evaluates(self, number: int) -> bool:
        """Whether this batch of an evaluation runs through the model."""
        return not self.simulated or number < 2 or number == self.eval_batches - 1

    def compiled(self, model: torch.nn.Module) -> torch.nn.Module:
        """What the loop calls in place of the model: it is compiled when it is first called."""
        if self.compile is None:
            return model
        made: Any = torch.compile(model, mode=self.compile)
        return made  # type: ignore[no-any-return]

    def quiet(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """What a micro-batch runs in; gradients are exchanged with the last of a step alone.

        Where the plan says so, with each.
        """
        if self.grad_accum == 1 or self.layout.quiet is None or self.exchanges_each:
            return contextlib.nullcontext()
        return self.layout.quiet(self.model, last)

    def clip(self, norm: float) -> None:
        """Scale gradients down to a norm."""
        if self.layout.clip is not None:
            self.layout.clip(self.model, norm)
        else:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def loading(self, watch: Watch) -> contextlib.AbstractContextManager[None]:
        """The phase in which a loop wraps the model, where the layout leaves that to it."""
        if self.layout.handed_over is None:
            return contextlib.nullcontext()
        return watch.phase(Phase.LOAD, 0)

    def checked(self) -> Callable[[torch.nn.Module], None]:
        """What checks the model once a loop has wrapped it; to be asked for before."""
        check = self.layout.checked
        return (lambda wrapped: None) if check is None else check(self.model)

    def resume(self, watch: Watch) -> None:
        """Load the checkpoint, where there is one."""
        if self.restore is not None:
            with watch.phase(Phase.RESUME, 0):
                self.restore()


class Turns:
    """Phases for loops that are code of others: each begins where the one before ends."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._open: contextlib.AbstractContextManager[None] | None = None
        self._now: tuple[Phase, int] | None = None

    def to(self, phase: Phase, step: int) -> None:
        """Go on to a phase; nothing happens where it runs already."""
        if self._now == (phase, step):
            return
        self.end()
        self._now = (phase, step)
        self._open = self._watch.phase(phase, step)
        self._open.__enter__()

    def then(self, phase: Phase) -> None:
        """Go on to a phase of the step that runs."""
        if self._now is not None:
            self.to(phase, self._now[1])

    def end(self) -> None:
        """End the phase that runs, if any."""
        known, self._open, self._now = self._open, None, None
        if known is not None:
            known.__exit__(None, None, None)


@contextlib.contextmanager
def as_found(model: torch.nn.Module) -> Iterator[None]:
    """Undo what others put on a model itself, such as a wrapped ``forward``."""
    before = dict(vars(model))
    try:
        yield
    finally:
        vars(model).clear()
        vars(model).update(before)
