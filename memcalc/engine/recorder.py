"""Records phases and module names while a plan's program trains, on a GPU or on the CPU."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules

from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters
from memcalc.engine.notes import AtWork, Notebook, named
from memcalc.records.trace import Component, Phase
from memcalc.workload import quantised

_MANY = 25_000
"""Births and deaths of a step whose operators are not worth the time of PyTorch's profiler, which
takes a second for as many. Scratch of kernels then counts as temporary."""


class Recorder:
    """Follows a program phase by phase, as a ``Watch`` of its loop.

    ``watched`` says which steps are followed module by module and, with PyTorch's profiler,
    operator by operator; ``detailed`` does so whatever time it takes, and learns the dtype of every
    block; without ``named`` no operators are learned, and a third of a run's time is saved.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        wrapped: bool,
        watched: Iterable[int] = (),
        detailed: bool = False,
        named: bool = True,
    ) -> None:
        self.counters = counters
        [self._notes] = counters.notes
        self._notes.wrapped = wrapped
        self.model: torch.nn.Module | None = None
        self.optimizer: Any = None
        self.kept_on_host = 0
        """Bytes of a cache in host memory, when the last pass ended."""
        self.paths: dict[int, str] = {}
        """Of modules, by their ids, where a wrapper changes them."""
        self._watched, self._detailed, self._named = frozenset(watched), detailed, named
        self._hooks: list[Any] = []
        """On all modules, while they are followed."""

    @contextlib.contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Everything inside belongs to this phase of this step."""
        self._follow(phase, step)
        self.counters.enter(phase, step)
        yield
        self.counters.leave()
        self._name(phase)

    def _name(self, phase: Phase) -> None:
        """A phase has ended: name what it leaves behind."""
        counters, wrapped = self.counters, self._notes.wrapped
        since = [self._notes.intervals[-1].begin]
        if phase is Phase.LOAD and self.model is not None:
            # A loop's library has taken model and optimizer over.
            self.meet(self.model, self.optimizer)
        if phase in (Phase.LOAD, Phase.PREPARE) and wrapped:
            # What a wrapper makes before the model's own code begins are its buckets.
            counters.guess(Component.COMMUNICATION, since)
        if phase is Phase.FORWARD:
            counters.guess(Component.ACTIVATIONS, since)
        if phase is Phase.BACKWARD and self.model is not None:
            counters.name(Component.GRADIENTS, (p.grad for p in self.model.parameters()))
            if wrapped:
                # Of shards that are not reduced yet, a wrapper holds the whole gradients.
                counters.guess(Component.GRADIENTS, since)
        named_now = phase in (Phase.RESUME, Phase.BACKWARD, Phase.STEP)
        if named_now and self.model is not None and self.optimizer is not None:
            homes = {id(tensor): home for home, _, tensor, _ in named(self.model, self.paths)}
            counters.name_state(self.optimizer, homes)

    def meet(self, model: torch.nn.Module | None, optimizer: Any) -> None:
        """Learn the model and the optimizer that the program has by now."""
        self.model, self.optimizer = model, optimizer
        if model is None:
            return
        if optimizer is not None:
            _name_quantised_shards(model, self.counters)
        self.counters.name_models([("", model)], self.paths)
        if optimizer is not None and self._notes.wrapped:
            held = (p for group in optimizer.param_groups for p in group["params"])
            self.counters.name(Component.MASTER_WEIGHTS, held)

    def know(self, model: torch.nn.Module) -> None:
        """Learn the paths of modules before a wrapper puts its own names before them."""
        self.paths = {id(module): path for path, module in model.named_modules()}

    def _follow(self, phase: Phase, step: int) -> None:
        """Begin or end to follow modules and operators, as the step is a watched one."""
        wanted = step in self._watched and phase not in (Phase.LOAD, Phase.PREPARE, Phase.RESUME)
        if not wanted:
            self._unfollow()
        elif not self._hooks and self.model is not None:
            self._follow_modules(self.model)
            if self._detailed or (self._named and self._events_of_last_step() < _MANY):
                self._profile()

    def _follow_modules(self, model: torch.nn.Module) -> None:
        paths = self.paths or {id(module): path for path, module in model.named_modules()}
        at_work, intervals = AtWork(self.counters), self._notes.intervals

        def enters(module: torch.nn.Module, args: Any) -> None:
            again = intervals[-1].phase is Phase.BACKWARD
            at_work.enters(paths.get(id(module)), args, again=again)

        def leaves(module: torch.nn.Module, args: Any, out: Any) -> None:
            at_work.leaves(out, keeps=intervals[-1].phase is Phase.BACKWARD)

        self._hooks = [
            modules.register_module_forward_pre_hook(enters),
            modules.register_module_forward_hook(leaves, always_call=True),
        ]

    def _unfollow(self) -> None:
        for hook in self._hooks:
            hook.remove()
        notes = self._notes
        if self._hooks and notes.profiler is not None and not notes.profiled[1]:
            notes.profiler.__exit__(None, None, None)
            notes.profiled = (notes.profiled[0], notes.now())
        self._hooks = []

    def _profile(self) -> None:
        """Follow operators from here on; on the CPU, they are from the start."""
        notes = self._notes
        if notes.profiler is None:
            notes.profiler = internals.memory_profiler(with_dtypes=self._detailed)
            notes.profiled = (notes.now(), 0)
            notes.profiler.__enter__()

    def _events_of_last_step(self) -> int:
        """Births and deaths of the step before this one; 0: there is none."""
        before = [one for one in self._notes.intervals if one.phase is not Phase.LOAD]
        if not before:
            return 0
        step = [one for one in before if one.step == before[-1].step]
        return step[-1].end - step[0].begin

    def end(self) -> None:
        """Nothing is followed any more; what cuBLAS holds shows when it is told to let go."""
        self._unfollow()
        self.counters.end()


def _name_quantised_shards(model: torch.nn.Module, book: Notebook) -> None:
    """Of weights in 4 bit that a wrapper divided, each layer still knows the constants."""
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        weight = getattr(module, "weight", None)
        if state is not None and isinstance(weight, torch.Tensor):
            book.name(Component.QUANTISATION_CONSTANTS, quantised.constants_in(state).values())
            book.name(Component.QUANTISED_WEIGHTS, [weight])
