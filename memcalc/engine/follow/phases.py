"""Detects a program's training phase from its calls.

Until the first module is called the program loads; modules that prepare data on the host do not
count. Backward, an optimizer's step (with unscaling and clipping) and ``zero_grad`` are phases of
their own; a trained model that is called without gradients, and not in training mode, evaluates;
all the rest is forward.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.nn.utils import clip_grad

from memcalc.engine import source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters
from memcalc.engine.follow.hand_state import HandState
from memcalc.engine.follow.models import Models
from memcalc.engine.follow.steps import BY_HAND, Steps
from memcalc.engine.host_view import tensors_in
from memcalc.engine.notes import AtWork, held_by
from memcalc.engine.patches import Patches
from memcalc.records.trace import Component, Phase
from memcalc.workload.inference import caches_of
from memcalc.workload.job import scaler_class

_PLAIN = 0
"""Key of tensors that are trained without a module."""
_MOST = 100_000
"""Nodes of a graph that are looked at for its leaves."""


class Functional:
    """Follows weights that are replaced by new tensors in every step."""

    def __init__(self, counters: Counters, models: Models) -> None:
        self._counters, self._models = counters, models
        self._given: dict[int, frozenset[int]] = {}
        """Where the weights lie that a module was given last."""
        self._state = HandState(counters)

    def install(self, patches: Patches) -> None:
        """Follow from now on."""
        patches.wrap(torch.func, "functional_call", self._called)

    def _called(self, original: Any, module: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            # What it has itself is counted before what is put in its place.
            self._models.meet(module)
            buffers = {name for name, _ in module.named_buffers()}
            parts = [given] if isinstance(given, Mapping) else given
            self._are_weights(
                id(module),
                (one for part in parts for name, one in part.items() if name not in buffers),
            )
        return original(module, given, *args, **kwargs)

    def _are_weights(self, key: int, tensors: Iterable[Any]) -> None:
        leaves = [leaf for one in tensors if (leaf := internals.outer_leaf(one)) is not None]
        found = frozenset(address for leaf in leaves for address in self._counters.addresses(leaf))
        if not found:
            return  # Inner steps of meta-learning: they are parts of a graph.
        if self._given.get(key, found) != found:
            self._models.touch(leaves)
        if self._given.get(key) != found:
            self._models.count_plain(key, leaves)
        self._given[key] = found
        self._counters.name_at(Component.WEIGHTS, list(found))

    def look_for_plain(self, roots: Any, inputs: Any = (), *, differentiable: bool) -> None:
        """A program without modules and optimizers trains what a backward finds gradients of.

        Those are the leaves that it reaches, or what the outermost transform of ``torch.func`` is
        given; not what a backward is for that is ``differentiable`` itself.
        """
        wrapped = [one for one in _tensors_given(inputs) if internals.is_wrapped(one)]
        if wrapped:
            if internals.nested_gradients() > 1:
                return
            leaves = [leaf for one in wrapped if (leaf := internals.outer_leaf(one)) is not None]
        elif differentiable:
            return
        else:
            leaves = list(_leaves(one.grad_fn for one in _tensors_given(roots)))
        self._are_weights(_PLAIN, leaves)
        self._models.adopt(leaves)

    def look_for_state(self) -> None:
        """What a program writes or replaces itself between two backwards is state."""
        places = frozenset[int]().union(*self._given.values())
        found = self._state.look(self._models.parameters(), places)
        if found:
            self._models.keep_by_hand(found)

    def were_replaced(self) -> bool:
        """The last weights that a backward found are no more, or were written since."""
        return self._models.were_changed() or self._models.were_lost()

    def gradients(self, given: Any, found: Any) -> None:
        """What ``torch.autograd.grad`` returned for weights that it was given are gradients."""
        known = {at for one in self._models.parameters() for at in self._counters.addresses(one)}
        known = known.union(*self._given.values())
        named = []
        for one, gradient in zip(_tensors_given(given), _tensors_given(found), strict=False):
            leaf = internals.outer_leaf(one)
            if leaf is not None and known.intersection(self._counters.addresses(leaf)):
                named.append(internals.behind(gradient))
        self._counters.name(Component.GRADIENTS, named)


def _tensors_given(given: Any) -> list[torch.Tensor]:
    """The tensors that are given to autograd, or come from it, in whatever way."""
    several = [given] if isinstance(given, torch.Tensor) else given
    listed = several.values() if isinstance(several, Mapping) else several
    return [one for one in listed if isinstance(one, torch.Tensor)]


def _leaves(nodes: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors that a backward from these nodes accumulates gradients in."""
    waiting = [node for node in nodes if node is not None]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [other for other, _ in node.next_functions if other is not None]


_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")
WATCHED = 3
"""The first steps are followed module by module; all others by their phases alone."""


class Phases:
    """Follows a program, and notes where it is."""

    def __init__(self, counters: Counters, models: Models, steps: Steps) -> None:
        self.phase, self.step = Phase.LOAD, 0
        self.settled = 1
        """From this step on every optimizer has its state."""
        self._counters, self._models, self._steps = counters, models, steps
        self._functional = Functional(counters, models)
        steps.begins, steps.ends = self._step_begins, self._step_ends
        self._main = threading.get_ident()
        self._depth = 0
        self._at_work = AtWork(counters)
        self._loaded: list[int] | None = None
        """When a model was called while the program still loads."""
        self._stepped: set[int] = set()
        """Optimizers that stepped since the step began."""
        steps.updated_by_hand = self._updated_by_hand
        self._since: list[int] = []
        """When the forward began whose activations are not named yet."""
        self.backwards = 0
        """Calls of backward so far."""
        self._inside_backward = False
        """The optimizer that steps is called by a hook of backward's."""
        self.unwatched: Callable[[], None] = lambda: None
        """Called when the steps that are watched have ended."""

    def install(self, patches: Patches) -> None:
        """Follow from now on."""
        self._patches = patches
        self._functional.install(patches)
        patches.also(modules.register_module_forward_pre_hook(self._entering).remove)
        patches.also(modules.register_module_forward_hook(self._leaving, always_call=True).remove)
        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(torch.autograd, "grad", self._grad)
        patches.wrap(torch.optim.Optimizer, "zero_grad", self._zero_grad)
        patches.wrap(torch.nn.Module, "zero_grad", self._zero_grad)
        patches.wrap(scaler_class(), "unscale_", self._stepping)
        for name in _CLIPPING:
            patches.wrap(torch.nn.utils, name, self._stepping)
            patches.set(clip_grad, name, getattr(torch.nn.utils, name))

    @property
    def watched(self) -> bool:
        """Modules are followed in this step."""
        return self.step < WATCHED and bool(self._counters.notes)

    def end(self) -> None:
        """The program has ended: what it changed after its last backward is one more step."""
        if BY_HAND in self._steps.made and self._functional.were_replaced():
            self._steps.by_hand()

    # ---- phases

    def _mark(self, phase: Phase, line: str = "") -> None:
        if phase is not self.phase or line:
            self.phase = phase
            self._counters.enter(phase, self.step, line)

    def _enter(self, phase: Phase, line: str = "") -> None:
        """Begin a phase; after all optimizers have stepped, forward and backward are a new step."""
        begins = phase in (Phase.FORWARD, Phase.BACKWARD, Phase.EVAL) and bool(self._stepped)
        stepping = set(self._steps.made) - ({BY_HAND} if self._steps.has_optimizer else set())
        if begins and phase is not Phase.EVAL and self._stepped >= stepping:
            self._stepped.clear()
            self.step += 1
            if self.step == WATCHED:
                self._counters.without_lines()
                self.unwatched()
            if self.step <= WATCHED:
                self._models.sweep()  # Programs may have given parameters other memory.
            self.phase = phase
            self._counters.enter(phase, self.step, line)
            return
        self._mark(phase, line)

    @contextlib.contextmanager
    def _during(self, phase: Phase) -> Iterator[None]:
        """A phase that interrupts another one, of the same step."""
        before = self.phase
        self._mark(phase)
        try:
            yield
        finally:
            self._mark(before)

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        return self._run_backward(original, (), args, kwargs)

    def _run_backward(
        self, original: Any, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute gradients; ``inputs``: of these, where the call names them first."""
        if self.phase is Phase.BACKWARD or not self._is_followed():
            return original(*args, **kwargs)
        if not self._steps.has_optimizer:
            if self._models.none_ran and args:
                differentiable = bool(kwargs.get("create_graph"))
                self._functional.look_for_plain(args[0], inputs, differentiable=differentiable)
            if self._models.were_changed():
                self._steps.by_hand()
            self._functional.look_for_state()
        self._counters.guess(Component.ACTIVATIONS, self._since)
        self._enter(Phase.BACKWARD, source_lines.line())
        try:
            return original(*args, **kwargs)
        finally:
            self._models.gradients()
            self._mark(Phase.FORWARD)
            self._since = self._counters.moments()
            self.backwards += 1
            if self.backwards in (1, 4) and not self._steps.made:
                self._steps.find_own()
            if self.backwards == 1 and not self._steps.has_optimizer:
                self._models.watch_data(self._patches)

    def _grad(self, original: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, Iterator):
            inputs = tuple(inputs)  # Such as model.parameters().
        found = self._run_backward(original, inputs, (outputs, inputs, *args), kwargs)
        if self._is_followed():
            self._functional.gradients(inputs, found)
        return found

    def _zero_grad(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self.phase in (Phase.ZERO_GRAD, Phase.LOAD):
            return original(*args, **kwargs)
        with self._during(Phase.ZERO_GRAD):
            return original(*args, **kwargs)

    def _stepping(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with self._during(Phase.STEP):
            return original(*args, **kwargs)

    def _updated_by_hand(self) -> None:
        self._stepped.add(BY_HAND)
        self._models.name_optimizer("updates by hand")

    def _step_begins(self, owner: Any) -> None:
        self._inside_backward = self.phase is Phase.BACKWARD
        if self._inside_backward:
            self._models.gradients(held_by(owner))
        self._mark(Phase.STEP)

    def _step_ends(self, owner: Any, steps: int) -> None:
        self._stepped.add(id(owner))
        if steps == 1:
            self.settled = self.step + 1
        self._models.stepped(owner, steps)
        if self._inside_backward:
            self._mark(Phase.BACKWARD)
            return
        self._mark(Phase.FORWARD)
        self._since = self._counters.moments()

    # ---- modules

    def _is_followed(self, module: torch.nn.Module | None = None) -> bool:
        """The first thread that trains is the one whose phases are followed."""
        own = threading.get_ident()
        if own != self._main and self.phase is Phase.LOAD and not self._depth:
            if module is not None:
                first = next(module.parameters(), None)
                trains = first is not None and first.is_cuda and torch.is_grad_enabled()
            if module is None or trains:
                self._main = own
        return own == self._main

    def _entering(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # Dynamo would compile this hook, which breaks a full graph.
        if self.phase is not Phase.BACKWARD and not self._is_followed(module):
            return
        if self._depth and self.step >= WATCHED:
            self._depth += 1  # Most calls of a training.
            return
        if not self._depth and self.phase is not Phase.BACKWARD:
            self._begin_model(module, args)
        self._depth += 1
        if self.watched:
            again = self.phase is Phase.BACKWARD
            self._at_work.enters(self._models.path(module), args, again=again)

    def _begin_model(self, module: torch.nn.Module, args: Any) -> None:
        self._models.meet(module)
        self._loaded = self._counters.moments() if self.phase is Phase.LOAD else None
        if self.phase in (Phase.FORWARD, Phase.LOAD):
            quiet = not module.training and not torch.is_grad_enabled()
            evaluates = quiet and self._models.is_trained(module)
            self._enter(Phase.EVAL if evaluates else Phase.FORWARD)
        # What nothing has computed was handed to the model from outside.
        given = tensors_in((*args, internals.keywords_of_call()))
        given = (t for t in given if t.grad_fn is None and not t.requires_grad)
        self._counters.name_at(None, [at for t in given for at in self._counters.addresses(t)])

    def _leaving(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() != self._main and self.phase is not Phase.BACKWARD:
            return
        if not self._depth:
            return
        self._depth -= 1
        if self._depth and self.step >= WATCHED:
            return
        if self.watched:
            # What is left was saved for backward, also where checkpointing ran it again, and where
            # no backward follows.
            keeps = not self._depth and (
                self.phase is Phase.BACKWARD or any(t.requires_grad for t in tensors_in((out,)))
            )
            self._at_work.leaves(out, keeps=keeps)
        if not self._depth:
            if isinstance(out, dict) and "past_key_values" in out:
                self._counters.name(Component.KV_CACHE, caches_of(out))
            if self._loaded == self._counters.moments():
                self._mark(Phase.LOAD)  # It ran on the host, as transforms of images do.
            elif self.phase is Phase.EVAL:
                self._mark(Phase.FORWARD)
