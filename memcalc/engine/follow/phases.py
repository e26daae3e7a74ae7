"""Detects a program's training phase from its calls.

Until the first module is called the program loads; modules that prepare data on the host do not
count. Backward, an optimizer's step (with unscaling and clipping) and ``zero_grad`` are phases of
their own; a trained model that is called without gradients, and not in training mode, evaluates;
all else is forward. What an optimizer does inside backward is backward.

Between two of these calls is a gap, and the call that ends it tells what it was. Before a step it
belongs to the step, as clipping by hand does. A step ends when its gradients are cleared: what lies
between the update and ``zero_grad``, such as an average of weights, is still the step. Before a
forward it belongs to that forward: what a program does after ``zero_grad``, such as fetching the
next batch, is forward of the coming step.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.nn.utils import clip_grad
from torch.nn.utils.parametrize import ParametrizationList

from memcalc.engine import source_lines
from memcalc.engine.counters import Counters
from memcalc.engine.follow.steps import BY_HAND, Steps
from memcalc.engine.packages import deepspeed
from memcalc.engine.patches import Patches
from memcalc.records.trace import Phase
from memcalc.workload.job import scaler_class

_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")
_LEADS_TO = {Phase.BACKWARD: Phase.FORWARD, Phase.ZERO_GRAD: Phase.STEP}
"""Phase of a gap by the phase that ends it, where it is another one."""
_FEW = 3
"""Calls of models that a step makes before its backward; more are passes of an inference, and each
begins an interval of its own."""
_FREE = (Phase.LOAD, Phase.FORWARD, Phase.EVAL)
"""Phases that a call of a model may end."""


class Observer:
    """Receiver of a followed program's calls; this base class ignores them."""

    def meet_model(self, module: torch.nn.Module) -> None:
        """Handle a call of an outermost module, before its phase begins."""

    def is_trained(self, module: torch.nn.Module) -> bool:
        """Return True if an optimizer updates this module."""
        return True

    def enter_model(self, args: Any) -> None:
        """Handle the call of an outermost module, after its phase has begun."""

    def enter_module(self, module: torch.nn.Module, args: Any, phase: Phase) -> None:
        """Handle the start of a module's forward."""

    def leave_module(self, out: Any, phase: Phase, *, outermost: bool) -> None:
        """Handle the end of a module's forward."""

    def enter_backward(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Handle the start of backward; return the line that calls it, or an empty string."""
        return ""

    def leave_backward(self, backwards: int) -> None:
        """Handle the end of backward; ``backwards`` counts them so far."""

    def take_gradients(self, inputs: Any, found: Any) -> None:
        """Handle gradients of these inputs that ``torch.autograd.grad`` has returned."""

    def enter_step(self, optimizer: Any, *, inside_backward: bool) -> None:
        """Handle the start of an optimizer's update."""

    def leave_step(self, optimizer: Any, steps: int) -> None:
        """Handle the end of an optimizer's update; ``steps`` counts its updates so far."""

    def begin_step(self, step: int) -> None:
        """Handle the start of a step, after all optimizers have stepped."""

    def begin_gap(self, step: int) -> None:
        """Handle the start of a gap; ``step`` is the one of a forward that may follow."""


class Phases:
    """Follows a program, and notes where it is."""

    def __init__(self, counters: Counters, steps: Steps, observer: Observer) -> None:
        self.phase, self.step = Phase.LOAD, 0
        self.settled = 1
        """From this step on every optimizer has its state."""
        self.backwards = 0
        """Calls of backward so far."""
        self._counters, self._steps, self._observer = counters, steps, observer
        steps.begins, steps.ends = self._begin_step, self._end_step
        steps.updated_by_hand = lambda: self._stepped.add(BY_HAND)
        self._main = threading.get_ident()
        self._depth = 0
        self._calls = 0
        """Calls of models before the first backward."""
        self._loaded: list[int] | None = None
        """When a model was called while the program still loads."""
        self._stepped: set[int] = set()
        """Optimizers that stepped since the step began."""
        self._after: Phase | None = None
        """The phase before the gap that the program is in; ``None``: it is in none."""
        self._interval: tuple[Phase, int] | None = None
        """Phase and step that the counters know."""
        self._back_to: Phase | None = None
        """The phase that an evaluation interrupts."""
        self._inside_backward = False
        """The optimizer that steps is called by a hook of backward's."""
        self._generates: torch.nn.Module | None = None
        """The model of which each call is a pass of a generation."""

    def install(self, patches: Patches) -> None:
        """Start to follow the program's calls."""
        patches.also(modules.register_module_forward_pre_hook(self._on_enter).remove)
        patches.also(modules.register_module_forward_hook(self._on_leave, always_call=True).remove)
        patches.wrap(torch.autograd, "backward", self.backward)
        patches.wrap(torch.autograd, "grad", self._grad)
        patches.wrap(torch.optim.Optimizer, "zero_grad", self.clear_gradients)
        patches.wrap(torch.nn.Module, "zero_grad", self.clear_gradients)
        patches.wrap(scaler_class(), "unscale_", self._run_as_step)
        for name in _CLIPPING:
            patches.wrap(torch.nn.utils, name, self._run_as_step)
            patches.set(clip_grad, name, getattr(torch.nn.utils, name))
        deepspeed.follow_steps(patches, self._steps, self)

    # ---- phases

    def _mark(self, phase: Phase, line: str = "") -> None:
        """Set the current phase, and begin its interval unless it runs already."""
        self.phase = phase
        if line or (phase, self.step) != self._interval:
            self._interval = phase, self.step
            self._counters.enter(phase, self.step, line)

    def _enter(self, phase: Phase, line: str = "") -> None:
        """Begin a phase; after all optimizers have stepped, forward and backward are a new step."""
        if phase in (Phase.FORWARD, Phase.BACKWARD) and self._all_optimizers_ran():
            self._stepped.clear()
            self.step += 1
            self._observer.begin_step(self.step)
        if self._after is not None:
            self._end_gap(phase)
        self._mark(phase, line)

    def _all_optimizers_ran(self) -> bool:
        stepping = set(self._steps.made) - ({BY_HAND} if self._steps.has_optimizer else set())
        return bool(self._stepped) and self._stepped >= stepping

    def _begin_gap(self, after: Phase) -> None:
        """Begin a gap, whose phase is not known yet; it counts as forward until then."""
        self._after = after
        ahead = after in (Phase.STEP, Phase.ZERO_GRAD) and self._all_optimizers_ran()
        self._observer.begin_gap(self.step + ahead)
        if after is not Phase.EVAL:
            self.phase = Phase.FORWARD
            self._interval = None
            self._counters.enter(Phase.FORWARD, self.step + ahead)

    def _end_gap(self, phase: Phase) -> None:
        """Name a gap by the phase after it; an evaluation continues until another begins."""
        after, self._after = self._after, None
        if after is not Phase.EVAL:
            clears = after is phase is Phase.ZERO_GRAD
            self.phase = phase if clears else _LEADS_TO.get(phase, phase)
            self._interval = self.phase, self.step
            self._counters.rename(self.phase, self.step)

    def begin(self, phase: Phase, step: int = 0) -> None:
        """Begin a phase that only the caller knows of, such as loading."""
        self._after, self.step = None, step
        self._mark(phase)

    def leave(self) -> None:
        """End the current phase; no phase is current until the next begins."""
        self._interval = None
        self._counters.leave()

    def begin_training(self) -> None:
        """End loading: what follows belongs to the phase that the program enters next."""
        self._begin_gap(Phase.LOAD)

    def end(self, *, failed: bool = False) -> None:
        """End the program; ``failed``: memory ran out in the coming step."""
        if self._after is None or self._after is Phase.EVAL:
            return
        if failed and self._all_optimizers_ran():
            self._enter(Phase.FORWARD)
        self._after = None
        self._counters.rename(Phase.FORWARD, self.step)

    def end_training(self) -> None:
        """End the loop: memory that it leaves belongs to no phase."""
        if self._after not in (None, Phase.EVAL):
            self._after = None
            self._counters.forget()

    @contextlib.contextmanager
    def follow_passes(self, model: torch.nn.Module) -> Iterator[None]:
        """Count a model's first call in the context as prefill, and the others as decoding."""
        self.begin(Phase.PREFILL)
        self._generates, self._passes = model, itertools.count()
        try:
            yield
        finally:
            self._generates = None

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Run a phase in the context that interrupts the current one, or a gap."""
        before = None if self._after is not None else self.phase
        self._enter(phase)
        try:
            yield
        finally:
            if before is None:
                self._begin_gap(phase)
            else:
                self._mark(before)

    def backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function as the backward phase, such as a library's around autograd's."""
        return self._run_backward(original, (), args, kwargs)

    def _grad(self, original: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``torch.autograd.grad``: run it as backward, and report the gradients."""
        if isinstance(inputs, Iterator):
            inputs = tuple(inputs)  # Such as model.parameters().
        found = self._run_backward(original, inputs, (outputs, inputs, *args), kwargs)
        if self._in_training_thread():
            self._observer.take_gradients(inputs, found)
        return found

    def _run_backward(
        self, original: Any, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute gradients as the backward phase; ``inputs``: of these, if named."""
        if self.phase is Phase.BACKWARD or not self._in_training_thread():
            return original(*args, **kwargs)
        self._enter(Phase.BACKWARD, self._observer.enter_backward(inputs, args, kwargs))
        try:
            return original(*args, **kwargs)
        finally:
            self.backwards += 1
            self._calls = 0
            self._observer.leave_backward(self.backwards)
            self._begin_gap(Phase.BACKWARD)

    def clear_gradients(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function as the zero_grad phase, unless in backward or before training."""
        inside = self.phase in (Phase.ZERO_GRAD, Phase.LOAD, Phase.BACKWARD)
        if inside or self._after in (Phase.LOAD, Phase.RESUME):
            return original(*args, **kwargs)
        with self.during(Phase.ZERO_GRAD):
            return original(*args, **kwargs)

    def _run_as_step(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, such as gradient clipping, as part of the optimizer's step."""
        with self.during(Phase.STEP):
            return original(*args, **kwargs)

    def _begin_step(self, optimizer: Any) -> None:
        """Begin the step phase as an optimizer steps, unless inside backward."""
        self._inside_backward = self.phase is Phase.BACKWARD
        self._observer.enter_step(optimizer, inside_backward=self._inside_backward)
        if not self._inside_backward:
            self._enter(Phase.STEP)

    def _end_step(self, optimizer: Any, steps: int) -> None:
        """Record an optimizer's step, and begin a gap unless inside backward."""
        self._stepped.add(id(optimizer))
        if steps == 1:
            self.settled = self.step + 1
        self._observer.leave_step(optimizer, steps)
        if not self._inside_backward:
            self._enter(Phase.STEP)  # A closure may have ended in a gap.
            self._begin_gap(Phase.STEP)

    # ---- modules

    def _in_training_thread(self, module: torch.nn.Module | None = None) -> bool:
        """Return True in the thread whose phases are followed: the first that trains."""
        own = threading.get_ident()
        if own != self._main and self.phase is Phase.LOAD and not self._depth:
            if module is not None:
                first = next(module.parameters(), None)
                trains = first is not None and first.is_cuda and torch.is_grad_enabled()
            if module is None or trains:
                self._main = own
        return own == self._main

    def _on_enter(self, module: torch.nn.Module, args: Any) -> None:
        """Handle the start of a module's forward; the outermost begins a phase."""
        if torch.compiler.is_compiling():
            return  # Dynamo would compile this hook, which breaks a full graph.
        if self.phase is not Phase.BACKWARD and not self._in_training_thread(module):
            return
        if module is self._generates and (number := next(self._passes)):
            self._observer.begin_step(number)
            self.begin(Phase.DECODE, number)
        outermost = not self._depth and not isinstance(module, ParametrizationList)
        if outermost and self.phase is not Phase.BACKWARD:
            self._begin_model(module, args)
        self._depth += 1
        self._observer.enter_module(module, args, self.phase)

    def _begin_model(self, module: torch.nn.Module, args: Any) -> None:
        """Begin forward or evaluation as an outermost module is called."""
        self._observer.meet_model(module)
        self._loaded = self._counters.moments() if self.phase is Phase.LOAD else None
        if self.phase in _FREE:
            quiet = not module.training and not torch.is_grad_enabled()
            evaluates = quiet and self._observer.is_trained(module)
            interrupts = self.phase is Phase.FORWARD and self._after is None
            phase = Phase.EVAL if evaluates else Phase.FORWARD
            self._enter(phase)
            self._calls += 1
            if self._calls > _FEW:
                self._mark(phase, source_lines.find_line())
            self._back_to = Phase.FORWARD if interrupts else None
        self._observer.enter_model(args)

    def _on_leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        """Handle the end of a module's forward; the outermost ends an evaluation."""
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() != self._main and self.phase is not Phase.BACKWARD:
            return
        if not self._depth:
            return
        self._depth -= 1
        self._observer.leave_module(out, self.phase, outermost=not self._depth)
        if self._depth:
            return
        if self._loaded == self._counters.moments():
            self._mark(Phase.LOAD)  # It ran on the host, as transforms of images do.
        elif self.phase is Phase.EVAL and self._back_to is not None:
            self._mark(self._back_to)
        elif self.phase is Phase.EVAL:
            self._begin_gap(Phase.EVAL)
