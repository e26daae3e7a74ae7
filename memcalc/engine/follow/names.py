"""Names the memory of a program as it is followed: activations, gradients, state, modules."""

from collections.abc import Callable
from typing import Any

import torch

from memcalc.engine import source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters
from memcalc.engine.follow.functional import Functional
from memcalc.engine.follow.models import Models
from memcalc.engine.follow.phases import Observer
from memcalc.engine.follow.steps import BY_HAND, Steps
from memcalc.engine.host_view import tensors_in
from memcalc.engine.notes import AtWork, held_by
from memcalc.engine.patches import Patches
from memcalc.records.trace import Component, Phase
from memcalc.workload.inference import caches_of

WATCHED = 3
"""The first steps are followed module by module; all others by their phases alone."""


class Names(Observer):
    """Says of a script's memory what it is for."""

    def __init__(self, counters: Counters, models: Models, steps: Steps) -> None:
        self._counters, self._models, self._steps = counters, models, steps
        self._functional = Functional(counters, models)
        self._at_work = AtWork(counters)
        self._step = 0
        self._since: list[int] = []
        """When the forward began whose activations are not named yet."""
        self.unwatched: Callable[[], None] = lambda: None
        """Called when the steps that are watched have ended."""

    def install(self, patches: Patches) -> None:
        """Follow functional calls from now on."""
        self._patches = patches
        self._functional.install(patches)

    def end(self) -> None:
        """The program has ended: what it changed after its last backward is one more step."""
        if BY_HAND in self._steps.made and self._functional.were_replaced():
            self._steps.by_hand()

    # ---- modules

    @property
    def watched(self) -> bool:
        """Modules are followed in this step."""
        return self._step < WATCHED and bool(self._counters.notes)

    def meets_model(self, module: torch.nn.Module) -> None:
        """Name the weights of a model that is new."""
        self._models.meet(module)

    def is_trained(self, module: torch.nn.Module) -> bool:
        """Return True if an optimizer has updated this module."""
        return self._models.is_trained(module)

    def enters_model(self, args: Any) -> None:
        """What nothing has computed was handed to the model from outside."""
        given = tensors_in((*args, internals.keywords_of_call()))
        outside = (t for t in given if t.grad_fn is None and not t.requires_grad)
        self._counters.name_at(None, [at for t in outside for at in self._counters.addresses(t)])

    def enters_module(self, module: torch.nn.Module, args: Any, phase: Phase) -> None:
        """Note which module is at work."""
        if self.watched:
            again = phase is Phase.BACKWARD
            self._at_work.enters(self._models.path(module), args, again=again)

    def leaves_module(self, out: Any, phase: Phase, *, outermost: bool) -> None:
        """Name what the outermost one keeps, which was saved for backward.

        So it is where checkpointing ran it again, and where no backward follows.
        """
        if self.watched:
            keeps = outermost and (
                phase is Phase.BACKWARD or any(t.requires_grad for t in tensors_in((out,)))
            )
            self._at_work.leaves(out, keeps=keeps)
        if outermost and isinstance(out, dict) and "past_key_values" in out:
            self._counters.name(Component.KV_CACHE, caches_of(out))

    # ---- backward and steps

    def enters_backward(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Name the activations of the forward that has ended; return the line that calls."""
        if not self._steps.has_optimizer:
            if self._models.none_ran and args:
                differentiable = bool(kwargs.get("create_graph"))
                self._functional.look_for_plain(args[0], inputs, differentiable=differentiable)
            if self._models.were_changed():
                self._steps.by_hand()
                self._models.name_optimizer("updates by hand")
            self._functional.look_for_state()
        self._counters.guess(Component.ACTIVATIONS, self._since)
        return source_lines.line()

    def leaves_backward(self, backwards: int) -> None:
        """Name the gradients."""
        self._models.gradients()
        self._since = self._counters.moments()
        if backwards in (1, 4) and not self._steps.made:
            self._steps.find_own()
        if backwards == 1 and not self._steps.has_optimizer:
            self._models.watch_data(self._patches)

    def has_gradients(self, inputs: Any, found: Any) -> None:
        """Name the gradients that were asked for."""
        self._functional.gradients(inputs, found)

    def enters_step(self, optimizer: Any, *, inside_backward: bool) -> None:
        """Name the gradients that are used before backward has ended."""
        if inside_backward:
            self._models.gradients(held_by(optimizer))

    def leaves_step(self, optimizer: Any, steps: int) -> None:
        """Name the state."""
        self._models.stepped(optimizer, steps)
        self._since = self._counters.moments()

    def begins_step(self, step: int) -> None:
        """Name weights once more, to which programs may have given other memory."""
        self._step = step
        if step == WATCHED:
            self._counters.without_lines()
            self.unwatched()
        if step <= WATCHED:
            self._models.sweep()
