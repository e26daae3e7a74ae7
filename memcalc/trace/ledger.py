"""Every storage of a simulated run: when it lived, which operator made it, what it is for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.kernels.scratch import Allocations
from memcalc.records.trace import Aside, Component, Mark, Phase, Sent, Storage
from memcalc.trace import device
from memcalc.trace.entries import Entry, Position, dtype_name, name_of_node
from memcalc.trace.folding.tagged import UNTAGGED, TaggedTrace
from memcalc.trace.settling import BY_PARAMETER, settled
from memcalc.trace.streams import BackwardStreams, current_device
from memcalc.trace.torch_private.engine import current_node
from memcalc.trace.torch_private.tensors import named, storage_key, storage_of

_PLAIN = ("empty", "empty_strided", "zeros")
"""Operators that make a tensor of nothing."""


class EnoughError(Exception):
    """As much was recorded as was asked for."""


class Ledger:
    """Knows the present moment, and writes births and deaths down under it."""

    def __init__(self, size: Callable[[Any], int] = int) -> None:
        self._size = size
        self.entries: list[Entry] = []
        self.events: list[int] = []
        self.event_tags: list[int] = []
        self.marks: list[Mark] = []
        self.asides: list[Aside] = []
        self.position = Position()
        self.wrapped = False
        """The model is inside a wrapper over several GPUs, which allocates by itself."""
        self.by_parameter = False
        """What happens now repeats with a parameter's layer, not with the module at work."""
        self.until: tuple[Phase, ...] = ()
        """Nothing of these phases is recorded: the beginning of one raises ``EnoughError``."""
        self.units: dict[str, int] = {}
        """For modules inside repeated layers, the tag of their repetition."""
        self.streams = BackwardStreams()
        self.several = False
        """There are several devices, of which each storage is on one."""
        self._empty: set[int] = set()
        """Keys of storages that live without memory."""
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._nowhere: dict[int, weakref.ref[Any]] = {}
        """Storages that never have memory, by their keys."""

    @contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Everything inside belongs to this phase of this step."""
        self.position.phase, self.position.step = phase, step
        self.leave_repetition()
        self.by_parameter = phase in BY_PARAMETER
        self.marks.append(Mark(index=len(self.events), phase=phase, step=step))
        if phase in self.until:
            raise EnoughError
        yield

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``; a part of the present phase ends with it."""
        here, position = len(self.events), self.position
        self.marks.append(Mark(index=here, phase=position.phase, step=position.step))
        self.asides.append(Aside(index=here, what="empty_cache"))

    def at(self, name: str) -> None:
        """Say which module is at work; between two layers it is still the first."""
        self.position.module = name
        self.position.tag = self.units.get(name, self.position.tag)

    def go_by_parameter(self) -> None:
        """From here on, until the next phase, parameters are gone through."""
        self.by_parameter = True
        self.position.module = ""
        self.leave_repetition()

    def leave_repetition(self) -> None:
        """What happens now belongs to no repetition of a layer."""
        self.position.tag, self.position.source = UNTAGGED, None

    def log(self, event: int) -> None:
        """Write an event down: ``n`` storage ``n`` is born, ``~n`` it dies."""
        self.events.append(event)
        self.event_tags.append(self.position.tag)

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The storage of a tensor, if it was seen."""
        found = self._live.get(storage_key(tensor))
        return found[0] if found is not None else None

    def held_by(self, tensor: torch.Tensor) -> int | None:
        """The same, if it has memory: without, it is nothing to the allocator either."""
        return None if storage_key(tensor) in self._empty else self.number_of(tensor)

    def maker_of(self, tensor: torch.Tensor, node: Any) -> str:
        """The operator that made a tensor's storage while this node ran; empty if none did."""
        number = self.number_of(tensor)
        if number is None or self.entries[number].node != name_of_node(node):
            return ""
        return self.entries[number].op

    def was_made_in(self, tensor: torch.Tensor, node: Any) -> bool:
        """A tensor's storage was made while this node ran."""
        number = self.number_of(tensor)
        return number is not None and self.entries[number].node == name_of_node(node)

    def follow(self, args: Any) -> None:
        """What happens now repeats with the first tensor on the device among arguments.

        Without one it repeats with what was made last.
        """
        for arg in args:
            if isinstance(arg, list | tuple):
                self.follow(arg)
                return
            if isinstance(arg, torch.Tensor) and arg.device.type == device.NAME:
                self.leave_repetition()
                self.position.source = self.number_of(arg)
                return
        if self.events and self.events[-1] >= 0:
            self.position.source = self.events[-1]

    def birth(self, tensor: torch.Tensor, name: str, node: Any) -> None:
        """A storage was seen, perhaps for the first time; its death is noticed by itself."""
        storage = storage_of(tensor)
        key = named(storage)
        if key in self._live or key in self._nowhere:
            return
        nbytes = storage.nbytes()
        if nbytes == 0:
            return
        number = len(self.entries)
        entry = Entry(self._size(nbytes), name, self.position, node)
        entry.dtype = dtype_name(tensor.dtype)
        entry.stream = self.streams.of(node)
        if self.several:
            entry.device = tensor.device.index or 0
        self.entries.append(entry)
        self.log(number)
        self._live[key] = (number, weakref.ref(storage, lambda _: self._death(key)))

    def nowhere(self, tensor: torch.Tensor) -> None:
        """A storage was made that has no memory, and neither have views of it."""
        storage = storage_of(tensor)
        key = named(storage)
        self._nowhere[key] = weakref.ref(storage, lambda _: self._nowhere.pop(key))

    def resized(self, storage: Any, before: int, after: int) -> None:
        """A storage gave its memory back, or took other memory, and lives on.

        It takes the new before it lets go of the old: aten/src/ATen/native/cuda/Resize.cpp (2.13).

        Args:
            storage: a ``torch.UntypedStorage``.
            before: its bytes until now.
            after: its bytes from now on.
        """
        key = storage._cdata
        if key not in self._live or before == after:
            return
        number, reference = self._live[key]
        old = self.entries[number]
        old.resized = True
        if not after:
            self.log(~number)
            self._empty.add(key)
            return
        self._empty.discard(key)
        entry = Entry(self._size(after), old.op, self.position, None)
        entry.stream, entry.resized = self.streams.of(None), True
        entry.component, entry.dtype, entry.device = old.component, old.dtype, old.device
        self._live[key] = (len(self.entries), reference)
        self.entries.append(entry)
        self.log(len(self.entries) - 1)
        if before:
            self.log(~number)

    def used_by(self, tensor: torch.Tensor, stream: int) -> None:
        """Another stream uses a storage: what ``Tensor.record_stream`` says."""
        number = self.held_by(tensor)
        if number is not None:
            self.entries[number].used_by = stream

    def handed_over(self, gradients: tuple[Any, ...], node: Any) -> None:
        """Backward gives a node what it works on: a node of another stream has that stream use it.

        What was made before backward is not a gradient: the node itself saved it.
        """
        stream = self.streams.entered(node)
        if not stream or device.NAME == "cpu":
            return
        for gradient in gradients:
            number = self.number_of(gradient) if isinstance(gradient, torch.Tensor) else None
            if number is not None and self.entries[number].phase is Phase.BACKWARD:
                self.used_by(gradient, stream)

    def _death(self, key: int) -> None:
        number, _ = self._live.pop(key)
        if key in self._empty:
            self._empty.discard(key)
            return
        entry = self.entries[number]
        node = current_node() if self.position.phase is Phase.BACKWARD else None
        if node is not None:
            entry.until = node.name()
            recomputed = entry.component is None and entry.phase is Phase.BACKWARD and entry.grad
            # Made under grad mode inside backward: a recomputed forward. What outlives the
            # node that was running then was saved by the recompute.
            if recomputed and name_of_node(node) != entry.node:
                entry.component = Component.ACTIVATIONS
        self.log(~number)

    def play(self, allocations: Allocations, taken: list[int], name: str, node: Any) -> None:
        """Write down what a kernel takes; ``taken`` grows by the storages that still live."""
        for word in allocations:
            if word > 0:
                number = len(self.entries)
                entry = Entry(word, name, self.position, node)
                entry.component = Component.WORKSPACES
                entry.stream, entry.device = self.streams.of(node), current_device()
                self.entries.append(entry)
                self.log(number)
                taken.append(number)
            else:
                self.log(~taken[~word])
                taken[~word] = -1

    def label(self, tensors: Any, component: Component) -> None:
        """Say what these tensors are for; the first thing said of a storage stands."""
        for tensor in tensors:
            found = self._live.get(storage_key(tensor))
            if found is None:
                continue
            entry = self.entries[found[0]]
            if entry.component is None or entry.guessed:
                entry.component, entry.guessed = component, False

    def adopt(self, parameter: torch.Tensor, tensors: Any) -> None:
        """Say that these tensors, made without a look at the parameter, belong to its layer."""
        owner = self._live.get(storage_key(parameter))
        for tensor in tensors:
            found = self._live.get(storage_key(tensor))
            if owner is None or found is None:
                continue
            entry = self.entries[found[0]]
            if not entry.module and entry.phase in BY_PARAMETER:
                entry.module = self.entries[owner[0]].module
            if entry.phase in BY_PARAMETER:
                entry.source = owner[0]

    def label_made_by(self, op: str, component: Component) -> None:
        """Guess what everything is for that this operator made and that is still alive."""
        for number, _ in self._live.values():
            entry = self.entries[number]
            if entry.component is None and entry.op == op:
                entry.component, entry.guessed = component, True

    def label_fetched(self) -> None:
        """Guess that what lies on another stream, made by no module, is a batch fetched ahead."""
        for number, _ in self._live.values():
            entry = self.entries[number]
            if entry.component is None and entry.is_on_side and not (entry.module or self.wrapped):
                entry.component, entry.guessed = Component.INPUTS, True

    def belong(self, path: str, tensors: Any) -> None:
        """Say which module these tensors, made without a look at it, are of."""
        for tensor in tensors:
            found = self._live.get(storage_key(tensor))
            if found is not None and not self.entries[found[0]].module:
                entry = self.entries[found[0]]
                entry.module = path
                entry.tag = self.units.get(path, entry.tag)
                entry.source = None

    def label_living(self, phase: Phase, component: Component, *, since: int = 0) -> None:
        """Say what everything is for that this phase made and that is still alive.

        Args:
            phase: that made it.
            component: what it is for.
            since: storages before this one are left as they are.
        """
        for number, _ in self._live.values():
            entry = self.entries[number]
            if number < since:
                continue
            sent = self.wrapped and entry.is_on_side
            if entry.component is not None or entry.phase is not phase or sent:
                continue
            # What a wrapper makes before the model's own code begins are its buckets.
            bucket = self.wrapped and not entry.module and entry.op in _PLAIN
            entry.component = Component.COMMUNICATION if bucket else component

    def tagged_trace(self, flops: int | None, sent: tuple[Sent, ...] = ()) -> TaggedTrace:
        """Everything seen so far, beside the operations and the messages that were counted."""
        event_tags = settled(self.entries, self.events, self.event_tags, self.marks)
        return TaggedTrace(
            storages=[
                Storage(
                    bytes=entry.bytes,
                    component=entry.purpose(self.wrapped),
                    phase=entry.phase,
                    step=entry.step,
                    module=entry.module,
                    op=entry.op,
                    dtype=entry.dtype,
                    until=entry.until,
                    stream=entry.stream,
                    used_by=entry.used_by,
                )
                for entry in self.entries
            ],
            storage_tags=[entry.tag for entry in self.entries],
            flops=flops,
            sent=sent,
            events=list(self.events),
            event_tags=event_tags,
            marks=list(self.marks),
            asides=list(self.asides),
        )
