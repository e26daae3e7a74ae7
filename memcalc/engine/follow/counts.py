"""Which parameters and optimizer state a program had, each once, and when."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from memcalc.engine.notes import dtype_name, flat
from memcalc.records.model import (
    DTYPE_BYTES,
    Inventory,
    OptimizerState,
    Parameter,
    Place,
    StateTensor,
)
from memcalc.workload.inventory import take
from memcalc.workload.wrapped_tensors import plain


class TensorRef(weakref.ref[Any]):
    """A weak reference that ``weakref.getweakrefs`` leaves out.

    PyTorch swaps no parameter that has one, as ``Module.to`` does with DTensors and float8.
    """

    @staticmethod
    def hide(original: Callable[[Any], list[Any]], one: Any) -> list[Any]:
        """Replace ``weakref.getweakrefs``."""
        return [ref for ref in original(one) if not isinstance(ref, TensorRef)]


class _Counted(msgspec.Struct):
    """The tensors of a model that no model before has, or what an optimizer keeps."""

    born: int
    """The interval in which the model came to the GPU, or the optimizer was made."""
    tensors: tuple[Any, ...] = ()
    head: str = ""
    ran: bool = False
    """The program called this model."""
    numbers: dict[str, int] = {}
    """The ``id`` of each tensor of a model, by its name."""
    died: dict[str, int] = {}
    """The interval in which each of them died or left the GPU, or (``""``) the optimizer."""
    watched: list[TensorRef] = []

    def watch(self, name: str, one: Any, interval: Callable[[], int]) -> None:
        """Record the interval in which an object is freed, under a name."""
        with contextlib.suppress(TypeError):
            self.watched.append(TensorRef(one, lambda _: self.died.update({name: interval()})))

    def is_alive_in(self, interval: int, name: str = "") -> bool:
        """Return True if the optimizer or the named tensor is alive in this interval."""
        return self.born <= interval <= self.died.get(name, interval)


class Counts:
    """Counts parameters of models and plain ones, and state; ``interval``: the present one."""

    def __init__(self, interval: Callable[[], int]) -> None:
        self._interval = interval
        self._models: list[_Counted] = []
        self._plain: dict[int, _Counted] = {}
        """Parameters that no module has, by their optimizer."""
        self._places: dict[int, set[int]] = {}
        """Where those of each lie."""
        self._known: dict[int, TensorRef] = {}
        self._states: list[_Counted] = []
        self._of_optimizers: dict[int, _Counted] = {}

    def add_model(self, model: torch.nn.Module, born: int, *, ran: bool) -> bool:
        """Count tensors not counted for another model (a loss module may hold the model).

        If the program has not called the model itself, only tensors on the GPU count.

        Returns:
            It has parameters.
        """
        inventory = take(model, "", "script")
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        if ran:
            own = set(map(id, named.values()))
            for counted in self._models:
                # It may have been counted before it was called.
                counted.ran = counted.ran or own.issuperset(counted.numbers.values())
        new = {
            name: one
            for name, one in named.items()
            if not (self._contains(one) or one.is_meta) and (ran or one.is_cuda)
        }
        # What quantization adds to a parameter goes with it.
        tensors = tuple(
            one
            for one in inventory.tensors
            if (one.name in new or one.name not in named) and one.dtype in DTYPE_BYTES
        )
        self._known.update({id(one): TensorRef(one) for one in new.values()})
        if any(not (one.buffer or one.constant) for one in tensors):
            numbers = {name: id(one) for name, one in new.items()}
            counted = _Counted(
                born=born, tensors=tensors, head=inventory.head, ran=ran, numbers=numbers
            )
            for name, one in new.items():
                counted.watch(name, one, self._interval)
            self._models.append(counted)
        return bool(inventory.parameters)

    def add_plain(self, tensors: Iterable[torch.Tensor], owner: int) -> None:
        """Count parameters that no module has; they replace the earlier ones of this owner.

        Views of parameters that a module or another owner has are not counted.
        """
        known = {
            at for ref in self._known.values() if (one := ref()) is not None for at in _ptrs(one)
        }
        others = [places for other, places in self._places.items() if other != owner]
        known = known.union(*others)
        new = [
            one
            for one in tensors
            if dtype_name(one) in DTYPE_BYTES and not known.intersection(_ptrs(one))
        ]
        self._places[owner] = {at for one in new for at in _ptrs(one)}
        self._plain[owner] = _Counted(
            born=0,
            ran=True,
            numbers={str(number): id(one) for number, one in enumerate(new)},
            tensors=tuple(
                Parameter(name=str(number), shape=tuple(one.shape), dtype=dtype_name(one))
                for number, one in enumerate(new)
            ),
        )

    def _contains(self, one: torch.Tensor) -> bool:
        ref = self._known.get(id(one))
        return ref is not None and ref() is one

    @property
    def in_fp32(self) -> bool:
        """Return True if all counted parameters are in 32 bit: none has a master copy."""
        return all(t.dtype == "float32" for m in self._models for t in m.tensors if not t.buffer)

    def move(self, module: torch.nn.Module) -> None:
        """Record which tensors of a module left the GPU, or came back to it."""
        there = {id(one): one.is_cuda for one in module.parameters() if self._contains(one)}
        for counted in self._models if there else ():
            for name, number in counted.numbers.items():
                if there.get(number):
                    counted.died.pop(name, None)
                elif number in there:
                    counted.died.setdefault(name, self._interval())

    def keep(self, optimizer: Any, states: Iterable[Any], born: int = 0) -> None:
        """Count the state of an optimizer; it replaces its earlier state."""
        found = self._of_optimizers.get(id(optimizer))
        if found is None or found.died:
            found = _Counted(born=born)
            found.watch("", optimizer, self._interval)
            self._of_optimizers[id(optimizer)] = found
            self._states.append(found)
        found.tensors = tuple(_list_states(states))

    def inventory(self, name: str, interval: int, trained: set[int]) -> Inventory:
        """Return the tensors of all models alive in an interval.

        ``trained``: the ``id`` of what optimizers have updated.
        """
        every = [(m, one) for m in (*self._models, *self._plain.values()) for one in m.tensors]
        there = [(m, one) for m, one in every if m.is_alive_in(interval, one.name)] or every
        heads = [model.head for model, _ in there if model.ran and model.head]
        updated = {id(m) for m, _ in every if not trained.isdisjoint(m.numbers.values())}

        def trains(model: _Counted, one: Parameter) -> bool:
            # Those of a GAN train by turns; an averaged copy of a model does not.
            by_itself = one.trainable and (id(model) in updated or not updated)
            return by_itself or model.numbers.get(one.name) in trained

        tensors = tuple(replace(one, trainable=trains(model, one)) for model, one in there)
        head = " + ".join(dict.fromkeys(heads))
        return Inventory(model=name, task="script", head=head, tensors=tensors)

    def state(self, interval: int, names: str) -> OptimizerState:
        """Return the state of the optimizers alive in an interval."""
        there = [one for one in self._states if one.is_alive_in(interval)] or self._states
        tensors = tuple(tensor for one in there for tensor in one.tensors)
        return OptimizerState(optimizer=names, implementation=names, tensors=tensors)


def _ptrs(tensor: torch.Tensor) -> Iterator[int]:
    """Yield the addresses of a tensor's storages; none if it has no memory."""
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        yield from (part.untyped_storage().data_ptr() for part in plain(tensor))


def _list_states(states: Iterable[Any]) -> Iterator[StateTensor]:
    """Yield the tensors of optimizer states, each storage once; parameters by their number."""
    seen: set[int] = set()
    for number, state in enumerate(states):
        for name, value in flat("", state, objects=True):
            for part in plain(value):
                at = part.untyped_storage().data_ptr()
                if dtype_name(part) in DTYPE_BYTES and at not in seen:
                    seen |= {at} - {0}
                    yield StateTensor(
                        parameter=str(number),
                        name=name,
                        dtype=dtype_name(part),
                        numel=part.numel(),
                        place=Place.DEVICE if part.device.type == "cuda" else Place.HOST,
                    )
