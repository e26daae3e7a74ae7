"""What a script's storages are for: its models, gradients and optimizers, as they show up."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from msgspec.structs import replace
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from memcalc.records.model import (
    DTYPE_BYTES,
    Inventory,
    OptimizerState,
    Place,
    StateTensor,
)
from memcalc.records.trace import Component, Phase
from memcalc.trace import quantised
from memcalc.trace.ledger import Ledger
from memcalc.trace.torch_private.tracing import untraced
from memcalc.workload.inventory import take

HOST_COPY = "copy from host"
"""The operator of a storage that was filled from the host."""
_SETTLED = 2
"""Steps after which an optimizer has made all its state."""


class Labels:
    """Knows a script's models and optimizers, and keeps none of them alive."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._inventories: list[Inventory] = []
        """Of each model that was called from outside of all others, as it was then."""
        self._counted = WeakTensorKeyDictionary()
        """Their parameters and buffers."""
        self._states: dict[int, tuple[StateTensor, ...]] = {}
        self._optimizer_names: dict[str, None] = {}
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._paths: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._trained: set[int] = set()
        self._resting: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that have not stepped yet; their state may have been loaded."""

    def path(self, module: torch.nn.Module) -> str:
        """What a module is called inside its model."""
        return self._paths.get(module, type(module).__name__)

    def meet(self, module: torch.nn.Module) -> None:
        """A module is called from outside of all others; the first model needs no prefix."""
        if module in self._paths or any(map(is_lazy, module.parameters())):
            # Lazy modules get their parameters in their first forward.
            return
        prefix = f"{type(module).__name__}." if self._inventories else ""
        for path, part in module.named_modules():
            self._paths.setdefault(part, f"{prefix}{path}".rstrip("."))
        with untraced():  # or sizes are tensors
            inventory = take(module, "", "script")
        if inventory.parameters:
            self._models.add(module)
            self._count(module, inventory)
        self.models()

    def _count(self, module: torch.nn.Module, inventory: Inventory) -> None:
        """Take down what no model before has: a loss may hold the one that it is of."""
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        known = {name for name, tensor in named.items() if tensor in self._counted}
        self._counted.update(dict.fromkeys(named.values()))
        new = [one for one in inventory.tensors if one.name not in known]
        if known:
            inventory = replace(inventory, tensors=tuple(new))
        if inventory.parameters:
            self._inventories.append(inventory)

    def is_trained(self, module: torch.nn.Module) -> bool:
        """An optimizer has updated this module."""
        first = next((p for p in module.parameters() if p.requires_grad), None)
        return first is not None and id(first) in self._trained

    def trains(self, module: torch.nn.Module) -> None:
        """Somebody updates this module."""
        self._trained.update(map(id, module.parameters()))

    def made(self, optimizer: Any) -> None:
        """There is an optimizer."""
        self._resting.add(optimizer)

    def stepped(self, optimizer: Any, steps: int) -> None:
        """An optimizer has made so many steps."""
        self._resting.discard(optimizer)
        if optimizer not in self._numbers:
            self._numbers[optimizer] = len(self._numbers)
            self._optimizer_names[type(optimizer).__name__] = None
            for group in optimizer.param_groups:
                self._trained.update(map(id, group["params"]))
        if steps <= _SETTLED:
            self._states[self._numbers[optimizer]] = tuple(_states(optimizer))
        self._label_states(optimizer)

    def models(self) -> None:
        """Label what models are made of."""
        for model in self._models:
            quantised.label(model, self._ledger)
            self._ledger.label(filter(_has_storage, model.parameters()), Component.WEIGHTS)
            self._ledger.label(filter(_has_storage, model.buffers()), Component.BUFFERS)

    def gradients(self) -> None:
        """Label the gradients of all models."""
        for model in self._models:
            gradients = (p.grad for p in model.parameters() if _has_gradient(p))
            self._ledger.label(filter(_has_storage, gradients), Component.GRADIENTS)

    def inputs(self) -> None:
        """Label what came from the host and is no part of a model or optimizer, as far as known.

        Of two models that were moved there before, one is called first.
        """
        for optimizer in self._resting:
            self._label_states(optimizer)
        self._ledger.label_made_by(HOST_COPY, Component.INPUTS)

    def fetched(self) -> None:
        """Label batches that lie ready, at the moment when a model is called."""
        self._ledger.label_fetched()

    def batches_differ(self) -> bool:
        """Not every step trained on batches of one size, as far as their largest tensors show."""
        by_step: dict[int, set[int]] = {}
        for entry in self._ledger.entries:
            fed = entry.component is Component.INPUTS and entry.grad
            if fed and entry.phase is not Phase.LOAD:
                by_step.setdefault(entry.step, set()).add(entry.bytes)
        most = max(map(max, by_step.values()), default=0)
        # A step whose batch was fetched before it shows small things alone.
        large = ({size for size in sizes if 2 * size >= most} for sizes in by_step.values())
        return len({frozenset(sizes) for sizes in large if sizes}) > 1

    def inventory(self, name: str) -> Inventory:
        """Every tensor of the models that ran."""
        head = " + ".join(dict.fromkeys(one.head for one in self._inventories))
        tensors = tuple(tensor for one in self._inventories for tensor in one.tensors)
        return Inventory(model=name, task="script", head=head, tensors=tensors)

    def state(self) -> OptimizerState:
        """What all optimizers keep, whether or not they are still there."""
        names = ", ".join(self._optimizer_names) or "no optimizer"
        tensors = tuple(tensor for state in self._states.values() for tensor in state)
        return OptimizerState(optimizer=names, implementation=names, tensors=tensors)

    def _label_states(self, optimizer: Any) -> None:
        for parameter, state in optimizer.state.items():
            tensors = [tensor for _, tensor in _named("", state)]
            self._ledger.label(tensors, Component.OPTIMIZER_STATE)
            if isinstance(parameter, torch.Tensor):
                self._ledger.adopt(parameter, tensors)


def _has_gradient(parameter: torch.Tensor) -> bool:
    """PyTorch warns where a tensor that is computed, as in meta-learning, is asked."""
    return (parameter.is_leaf or parameter.retains_grad) and parameter.grad is not None


def _has_storage(tensor: torch.Tensor) -> bool:
    """Not so inside ``torch.func``, where parameters are wrapped."""
    try:
        tensor.untyped_storage()
    except NotImplementedError:
        return False
    return True


def _states(optimizer: Any) -> Iterator[StateTensor]:
    """Every tensor that an optimizer keeps; parameters by their number."""
    for number, state in enumerate(optimizer.state.values()):
        for name, value in _named("", state):
            dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
            if dtype in DTYPE_BYTES:
                place = Place.DEVICE if value.device.type == "cuda" else Place.HOST
                yield StateTensor(
                    parameter=str(number), name=name, dtype=dtype, numel=value.numel(), place=place
                )


def _named(name: str, state: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a state; optimizers of one's own keep them in lists and by numbers, too."""
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, dict | list | tuple):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from _named(f"{name}.{key}" if name else str(key), value)
