"""Which part of training a script is in, found out from what it calls: it need not cooperate.

Until the first module is called the script loads; modules that prepare data on the host do not
count. Backward, an optimizer's step (with unscaling and clipping) and ``zero_grad`` are phases of
their own; a trained model that is called without gradients, and not in training mode, evaluates;
all the rest is forward.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optimizers

from memcalc.records.trace import Component, Mark, Phase
from memcalc.script.labels import Labels
from memcalc.script.patches import Patches
from memcalc.trace.recorder import TraceRecorder

_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


class EnoughStepsError(BaseException):
    """As many optimizer steps were seen as were asked for; no script catches this by accident."""


class Phases:
    """Follows a script and tells the recorder's ledger where it is.

    Args:
        recorder: what records.
        labels: told of models, gradients and states as they show up.
        steps: when an optimizer is about to go beyond these, the script is stopped; 0: never.
    """

    def __init__(self, recorder: TraceRecorder, labels: Labels, steps: int) -> None:
        self.steps = 0
        """Of the optimizer that has made most."""
        self._wanted = steps
        self._labels = labels
        self._recorder, self._ledger = recorder, recorder.ledger
        self._position = recorder.position
        self._depth = 0
        self._between = True
        """No module was called since the last backward."""
        self._made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._stepped: set[int] = set()
        """Optimizers that stepped since the step began."""
        self._driven = 0
        """How many libraries drive optimizers of theirs at this moment: those make no steps."""
        self._parts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """How often optimizers were called that somebody drives."""
        self._enter(Phase.LOAD)

    def install(self, patches: Patches) -> None:
        """Follow from now on."""
        for hook in (
            modules.register_module_forward_pre_hook(self._entering),
            modules.register_module_forward_hook(self._leaving, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ):
            patches.also(hook.remove)
        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(torch.autograd, "grad", self._backward)
        patches.wrap(torch.optim.Optimizer, "__init__", self._made_optimizer)
        patches.wrap(torch.optim.Optimizer, "zero_grad", self._zero_grad)
        patches.wrap(torch.nn.Module, "zero_grad", self._zero_grad)
        patches.wrap(torch.amp.GradScaler, "unscale_", self._stepping)
        for name in _CLIPPING:
            patches.wrap(torch.nn.utils, name, self._stepping)
            patches.set(clip_grad, name, getattr(torch.nn.utils, name))

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """A library tries its optimizers out before it trains: those are no steps."""
        self._driven += 1
        try:
            yield
        finally:
            self._driven -= 1

    @contextlib.contextmanager
    def one_step(self, owner: Any) -> Iterator[None]:
        """A step of somebody who drives optimizers; what those do inside are parts of it.

        Raises:
            EnoughStepsError: it has made as many as were asked for.
        """
        self._begin_step(owner)
        with self.prepared():
            yield
        self._end_step(owner)

    def made(self) -> dict[Any, int]:
        """How many steps each optimizer has made."""
        return dict(self._made)

    def drives(self, module: torch.nn.Module) -> None:
        """Somebody trains this module by tensors of its own."""
        self._labels.trains(module)

    def _begin_step(self, owner: Any) -> None:
        if self._wanted and self._made.get(owner, 0) >= self._wanted:
            raise EnoughStepsError
        self._mark(Phase.STEP)

    def _end_step(self, owner: Any) -> None:
        self._made[owner] = self._made.get(owner, 0) + 1
        self.steps = max(self.steps, self._made[owner])
        self._stepped.add(id(owner))
        self._mark(Phase.FORWARD)

    def _mark(self, phase: Phase) -> None:
        step, marks = self._position.step, self._ledger.marks
        if not marks or (marks[-1].phase, marks[-1].step) != (phase, step):
            marks.append(Mark(index=len(self._ledger.events), phase=phase, step=step))
        self._position.phase = phase

    def _enter(self, phase: Phase) -> None:
        """Begin a phase; after all optimizers have stepped, forward and backward are a new step."""
        begins = phase in (Phase.FORWARD, Phase.BACKWARD) and bool(self._stepped)
        if begins and self._stepped >= set(map(id, self._made)):
            self._stepped.clear()
            self._position.step += 1
        self._mark(phase)

    @contextlib.contextmanager
    def _during(self, phase: Phase) -> Iterator[None]:
        """A phase that interrupts another one, of the same step."""
        before = self._position.phase
        self._mark(phase)
        try:
            yield
        finally:
            self._mark(before)

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._position.phase is Phase.BACKWARD:
            return original(*args, **kwargs)
        self._labels.inputs()
        self._ledger.label_living(Phase.FORWARD, Component.ACTIVATIONS)
        self._enter(Phase.BACKWARD)
        try:
            return original(*args, **kwargs)
        finally:
            self._mark(Phase.FORWARD)
            self._between = True
            self._labels.gradients()

    def _made_optimizer(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._labels.made(optimizer)

    def _zero_grad(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._position.phase in (Phase.ZERO_GRAD, Phase.LOAD):
            return original(*args, **kwargs)
        with self._during(Phase.ZERO_GRAD):
            return original(*args, **kwargs)

    def _stepping(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with self._during(Phase.STEP):
            return original(*args, **kwargs)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._driven:
            self._begin_step(optimizer)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._driven:
            self._parts[optimizer] = self._parts.get(optimizer, 0) + 1
            self._labels.stepped(optimizer, self._parts[optimizer])
            return
        self._end_step(optimizer)
        self._labels.stepped(optimizer, self._made[optimizer])

    def _entering(self, module: torch.nn.Module, args: Any) -> None:
        if not self._depth:
            self._labels.meet(module)
            if self._position.phase is Phase.FORWARD or (
                self._position.phase is Phase.LOAD and not _prepares(module, args)
            ):
                self._enter(Phase.EVAL if self._evaluates(module) else Phase.FORWARD)
            self._labels.inputs()
            if self._between and not _prepares(module, args):
                self._labels.fetched()
                self._between = False
        self._depth += 1
        self._recorder.modules.enter(self._labels.path(module))

    def _leaving(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if not self._depth:
            return
        self._depth -= 1
        self._recorder.modules.leave()
        if not self._depth and self._position.phase is Phase.EVAL:
            self._mark(Phase.FORWARD)

    def _evaluates(self, module: torch.nn.Module) -> bool:
        if module.training or torch.is_grad_enabled():
            return False
        return self._labels.is_trained(module)


def _prepares(module: torch.nn.Module, args: Any) -> bool:
    """It has no weights and is given nothing on the GPU, as torchvision's transforms of images."""
    on_gpu = (arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_cuda)
    return next(module.parameters(), None) is None and next(on_gpu, None) is None
