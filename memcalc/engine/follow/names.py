"""Labels the memory of a program while it runs: activations, gradients, state, modules."""

from collections.abc import Callable, Container, Mapping
from typing import Any

import torch

from memcalc.engine import source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters
from memcalc.engine.follow.functional import Functional
from memcalc.engine.follow.models import Models
from memcalc.engine.follow.operators import Operators
from memcalc.engine.follow.phases import Observer
from memcalc.engine.follow.steps import BY_HAND, Steps
from memcalc.engine.host_view import tensors_in
from memcalc.engine.notes import RunningModules, held_by
from memcalc.engine.patches import Patches
from memcalc.records.trace import Component, Phase
from memcalc.workload.inference import find_caches

WATCHED = 3
"""Steps of a script that are followed module by module; all others by their phases alone."""


class Names(Observer):
    """Labels the memory of a program.

    Args:
        counters: take the labels.
        models: the program's models.
        steps: its optimizer steps.
        watched: steps that are followed module by module.
        operators: follows those steps operator by operator, too; None: nothing does.
    """

    def __init__(
        self,
        counters: Counters,
        models: Models,
        steps: Steps,
        watched: Container[int] = range(WATCHED),
        operators: Operators | None = None,
    ) -> None:
        self._counters, self.models, self._steps = counters, models, steps
        self._functional = Functional(counters, models)
        self._watched, self._operators = watched, operators
        self._at_work = RunningModules(counters)
        self._step = 0
        self._optimizer: Any = None
        """The optimizer of a plan, known before the first step."""
        self.cached_on_host = 0
        """Bytes of the KV cache in host memory, as the last watched pass left it."""
        self._ran = False
        self._since: list[int] = []
        """When the gap began that forward is a part of."""
        self._before: list[int] = []
        """When backward began."""
        self._inside_backward = False
        """The optimizer steps inside backward."""
        self.stepping: Callable[[int], None] = lambda step: None
        """Called when another step begins."""
        self.drop: Callable[[str], None] = lambda place: None
        """Called with each module that begins, so that it is known where a program dies."""

    def install(self, patches: Patches) -> None:
        """Start to follow functional calls of modules."""
        self._patches = patches
        self._functional.install(patches)

    def end(self) -> None:
        """Stop following; changes after the last backward count as one more step."""
        if self._operators is not None:
            self._operators.end()
        if BY_HAND in self._steps.made and self.models.detect_replacements():
            self._steps.by_hand()

    def meet(self, model: torch.nn.Module, optimizer: Any) -> None:
        """Label the tensors of a plan's model, and of its wrapper, before the training loop."""
        self._optimizer = optimizer
        self.models.add(model)
        if optimizer is not None:
            self.models.trains(model)
        self._name_wrapper()

    def _name_wrapper(self) -> None:
        """Label what a wrapper over several GPUs allocated before the first forward."""
        if self._counters.wrapped:
            self._counters.guess(Component.COMMUNICATION, [])

    # ---- modules

    def watch(self, step: int) -> None:
        """Label by module and operator in this step, if it is watched; else only by phase."""
        self._step = step
        if self._operators is None:
            return
        if step in self._watched:
            self._operators.begin(step)
        else:
            self._operators.end()

    @property
    def _is_active(self) -> bool:
        """Return True if modules are labelled in this step."""
        return self._step in self._watched and bool(self._counters.notes)

    def meet_model(self, module: torch.nn.Module) -> None:
        """Label the weights of a model that is new, or that a loop's library has changed."""
        if not self.models.meet(module) and not self._ran:
            self.models.sweep()
        if not self._ran:
            self._ran = True
            self._name_wrapper()

    def is_trained(self, module: torch.nn.Module) -> bool:
        """Return True if an optimizer has updated this module."""
        return self.models.is_trained(module)

    def enter_model(self, args: Any) -> None:
        """Label the tensors among a model's arguments as inputs."""
        keywords = internals.keywords_of_call()
        # A beam search orders its cache anew between two passes.
        self._name_cache(keywords)
        given = tensors_in((*args, keywords))
        outside = (t for t in given if t.grad_fn is None and not t.requires_grad)
        self._counters.name_at(None, [at for t in outside for at in self._counters.addresses(t)])

    def enter_module(self, module: torch.nn.Module, args: Any, phase: Phase) -> None:
        """Record the module whose forward runs now."""
        path = self.models.path(module)
        if path:
            self.drop(path)
        if self._is_active:
            self._at_work.enters(path, args, again=phase is Phase.BACKWARD)

    def leave_module(self, out: Any, phase: Phase, *, outermost: bool) -> None:
        """Label what the outermost module keeps for backward.

        Checkpointing runs it again there, and a script may do no backward at all.
        """
        if self._is_active:
            last = outermost and self._optimizer is None
            saves = last and any(one.requires_grad for one in tensors_in((out,)))
            self._at_work.leaves(out, keeps=phase is Phase.BACKWARD or saves)
            if outermost:
                self._name_cache(out)

    def _name_cache(self, held: Any) -> None:
        """Label the KV cache among a model's arguments or outputs; a training has none."""
        if self._is_active and isinstance(held, Mapping) and not torch.is_grad_enabled():
            tensors = list(find_caches(held))
            self._counters.name(Component.KV_CACHE, tensors)
            self.cached_on_host = sum(one.nbytes for one in tensors if one.is_cpu)

    # ---- backward and steps

    def enter_backward(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Label the activations of the forward that has ended; return the calling line."""
        if not self._steps.has_optimizer:
            if self.models.none_ran and args:
                differentiable = bool(kwargs.get("create_graph"))
                self._functional.look_for_plain(args[0], inputs, differentiable=differentiable)
            if self.models.detect_changes():
                self._steps.by_hand()
                self.models.name_optimizer("updates by hand")
            self._functional.look_for_state()
        self._counters.guess(Component.ACTIVATIONS, self._since)
        self._before = self._counters.moments()
        return source_lines.find_line()

    def leave_backward(self, backwards: int) -> None:
        """Label the gradients, and the state of a plan's updates inside backward."""
        self.models.gradients()
        if self._counters.wrapped:
            # Of shards that are not reduced yet, a wrapper holds the whole gradients.
            self._counters.guess(Component.GRADIENTS, self._before)
        if self._inside_backward and self._optimizer is not None:
            self.models.name_optimizer_state(self._optimizer, backwards)
        if backwards in (1, 4) and not self._steps.made:
            self._steps.find_own()
        if backwards == 1 and not self._steps.has_optimizer:
            self.models.watch_data(self._patches)

    def take_gradients(self, inputs: Any, found: Any) -> None:
        """Label the gradients that ``torch.autograd.grad`` returned."""
        self._functional.gradients(inputs, found)

    def enter_step(self, optimizer: Any, *, inside_backward: bool) -> None:
        """Label the gradients that an optimizer uses before backward has ended."""
        self.drop("the optimizer's step")
        self._inside_backward = inside_backward
        if inside_backward:
            self.models.gradients(held_by(optimizer))

    def leave_step(self, optimizer: Any, steps: int) -> None:
        """Label the optimizer's state after its step."""
        if self._optimizer is None:
            self.models.name_optimizer_state(optimizer, steps)
        elif not self._inside_backward:
            self.models.name_optimizer_state(self._optimizer, steps)

    def begin_step(self, step: int) -> None:
        """Start or stop labelling by module and operator, as the new step is watched or not."""
        self.watch(step)
        self.stepping(step)

    def begin_gap(self, step: int) -> None:
        """Follow modules and operators as soon as the forward of a watched step may begin."""
        self._since = self._counters.moments()
        if step in self._watched:
            self.watch(step)
