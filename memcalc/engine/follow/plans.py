"""Names the memory of a plan's program, whose model and optimizer are known."""

from collections.abc import Iterable
from typing import Any

import torch

from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters
from memcalc.engine.follow.phases import Observer
from memcalc.engine.notes import AtWork, named
from memcalc.records.trace import Component, Phase
from memcalc.workload import quantised

_MANY = 25_000
"""Births and deaths of a step whose operators are not worth the time of PyTorch's profiler, which
takes a second for as many. Scratch of kernels then counts as temporary."""


class PlanNames(Observer):
    """Says of a plan's memory what it is for.

    ``watched`` says which steps are followed module by module and, with PyTorch's profiler,
    operator by operator; ``detailed`` does so whatever time it takes, and learns the dtype of every
    block; without ``named`` no operators are learned, and a third of a run's time is saved.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        wrapped: bool,
        watched: Iterable[int],
        detailed: bool = False,
        named: bool = True,
    ) -> None:
        self.counters = counters
        [self._notes] = counters.notes
        self._notes.wrapped = wrapped
        self._model: torch.nn.Module | None = None
        self._optimizer: Any = None
        self._paths: dict[int, str] = {}
        """Of modules, by their ids, where a wrapper changes them."""
        self._watched, self._detailed, self._named = frozenset(watched), detailed, named
        self._at_work: AtWork | None = None
        """Modules that run, while they are followed."""
        self._ran = False
        self._since: list[int] = []
        """When the gap began that forward is a part of."""
        self._before: list[int] = []
        """When backward began."""
        self._inside_backward = False
        """The optimizer steps inside backward."""
        self._homes: dict[int, str] = {}
        """Modules of parameters, by the ids of these."""

    def know(self, model: torch.nn.Module) -> None:
        """Learn the paths of modules before a wrapper puts its own names before them."""
        self._paths = {id(module): path for path, module in model.named_modules()}

    def meet(self, model: torch.nn.Module, optimizer: Any) -> None:
        """Name what the program has by now."""
        self._model, self._optimizer = model, optimizer
        if optimizer is not None:
            self._name_quantised_shards(model)
        self.counters.name_models([("", model)], self._paths)
        self._homes = {id(tensor): home for home, _, tensor, _ in named(model, self._paths)}
        if self._notes.wrapped:
            # What a wrapper makes before the model's own code begins are its buckets.
            self.counters.guess(Component.COMMUNICATION, [])
            if optimizer is not None:
                held = (p for group in optimizer.param_groups for p in group["params"])
                self.counters.name(Component.MASTER_WEIGHTS, held)

    def _name_quantised_shards(self, model: torch.nn.Module) -> None:
        """Of weights in 4 bit that a wrapper divided, each layer still knows the constants."""
        for module in model.modules():
            state = getattr(module, "quant_state", None)
            weight = getattr(module, "weight", None)
            if state is not None and isinstance(weight, torch.Tensor):
                constants = quantised.constants_in(state).values()
                self.counters.name(Component.QUANTISATION_CONSTANTS, constants)
                self.counters.name(Component.QUANTISED_WEIGHTS, [weight])

    # ---- what the program calls

    def meets_model(self, module: torch.nn.Module) -> None:
        """Name what a loop's library has made of the model, before it is called first."""
        if not self._ran and self._model is not None:
            self._ran = True
            self.meet(self._model, self._optimizer)

    def is_trained(self, module: torch.nn.Module) -> bool:
        """Return True if the plan trains."""
        return self._optimizer is not None

    def enters_module(self, module: torch.nn.Module, args: Any, phase: Phase) -> None:
        """Note which module is at work."""
        if self._at_work is not None:
            path = self._paths.get(id(module))
            self._at_work.enters(path, args, again=phase is Phase.BACKWARD)

    def leaves_module(self, out: Any, phase: Phase, *, outermost: bool) -> None:
        """Note which module goes on."""
        if self._at_work is not None:
            self._at_work.leaves(out, keeps=phase is Phase.BACKWARD)

    def enters_backward(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Name the activations of the forward that has ended."""
        self.counters.guess(Component.ACTIVATIONS, self._since)
        self._before = self.counters.moments()
        return ""

    def leaves_backward(self, backwards: int) -> None:
        """Name the gradients, and the state of updates inside backward."""
        if self._model is not None:
            self.counters.name(Component.GRADIENTS, (p.grad for p in self._model.parameters()))
        if self._notes.wrapped:
            # Of shards that are not reduced yet, a wrapper holds the whole gradients.
            self.counters.guess(Component.GRADIENTS, self._before)
        if self._inside_backward:
            self._name_state()

    def enters_step(self, optimizer: Any, *, inside_backward: bool) -> None:
        """Note whether the update is a part of backward."""
        self._inside_backward = inside_backward

    def leaves_step(self, optimizer: Any, steps: int) -> None:
        """Name the state."""
        if not self._inside_backward:
            self._name_state()

    def _name_state(self) -> None:
        if self._optimizer is not None:
            self.counters.name_state(self._optimizer, self._homes)

    # ---- steps that are followed

    def pauses(self, step: int) -> None:
        """Follow modules from here on, as a forward of a step that is watched may begin."""
        self._since = self.counters.moments()
        if step in self._watched:
            self.watch(step)

    def begins_step(self, step: int) -> None:
        """Go on to follow modules, or end that."""
        self.watch(step)

    def watch(self, step: int) -> None:
        """Begin or end to follow modules and operators, as the step is a watched one."""
        if step not in self._watched:
            self._unwatch()
        elif self._at_work is None and self._model is not None:
            self._paths = self._paths or {id(m): path for path, m in self._model.named_modules()}
            self._at_work = AtWork(self.counters)
            if self._detailed or (self._named and self._events_of_last_step() < _MANY):
                self._profile()

    def _unwatch(self) -> None:
        notes = self._notes
        if self._at_work and notes.profiler is not None and not notes.profiled[1]:
            notes.profiler.__exit__(None, None, None)
            notes.profiled = (notes.profiled[0], notes.now())
        self._at_work = None

    def _profile(self) -> None:
        """Follow operators from here on; on the CPU, they are from the start."""
        notes = self._notes
        if notes.profiler is None:
            notes.profiler = internals.memory_profiler(with_dtypes=self._detailed)
            notes.profiled = (notes.now(), 0)
            notes.profiler.__enter__()

    def _events_of_last_step(self) -> int:
        """Births and deaths of the step that ends here; 0: there is none."""
        before = [one for one in self._notes.intervals if one.phase is not Phase.LOAD]
        if not before:
            return 0
        step = [one for one in before if one.step == before[-1].step]
        return self._notes.now() - step[0].begin

    def end(self) -> None:
        """The run has ended: nothing is followed any more."""
        self._unwatch()
