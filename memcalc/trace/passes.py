"""The passes of a traced decode: what each makes and frees, and what of earlier ones it frees."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import Allocations
from memcalc.records.decoding import BORN, DIES, EMPTIES, LEFT, Role, aged, roles
from memcalc.records.trace import Phase, Storage
from memcalc.records.walk import sections
from memcalc.symbolic.records import Kind, code
from memcalc.trace.folding.tagged import TaggedTrace

_LEFT = 1 << 40
OLDER = -1
"""An item: what dies is of a pass that nobody looked at, such as the prompt's."""


class NotSteadyError(Exception):
    """Passes do not repeat."""


class WrittenCalls:
    """Writes calls of kernels down instead of what they take; the interface of KernelMemory."""

    def __init__(self, torch: tuple[int, int]) -> None:
        self.torch = torch
        self.calls: dict[KernelCall, int] = {}
        self._listed: list[KernelCall] = []

    def transient(self, call: KernelCall) -> tuple[Allocations, Allocations]:
        """Before and after the outputs, as two numbers."""
        number = self.number(call)
        return (code(Kind.BEFORE, number),), (code(Kind.AFTER, number),)

    def persistent(self, call: KernelCall) -> Allocations:
        """The same for what a library keeps."""
        return (code(Kind.PERSISTENT, self.number(call)),)

    def number(self, call: KernelCall) -> int:
        """The number that stands for a call."""
        known = self.calls.setdefault(call, len(self.calls))
        if known == len(self._listed):
            self._listed.append(call)
        return known

    def at(self, number: int) -> KernelCall:
        """The call that a number stands for."""
        return self._listed[number]


class Pass(msgspec.Struct, frozen=True):
    """What one traced pass makes and frees."""

    storages: list[Storage]
    items: tuple[int, ...]
    left: tuple[Role, ...]
    """Of the passes before, what dies in this one."""
    numbers: list[int]
    """Of its storages in the trace."""
    before: dict[int, Role]
    """Storages of passes before that live on when it ends."""

    @property
    def names(self) -> dict[int, Role]:
        """What may live on, by number in the trace: its own storages and those of passes before.

        By the names that the next pass knows them by.
        """
        older = {number: aged(role) for number, role in self.before.items()}
        return {**older, **dict(zip(self.numbers, roles(self.storages), strict=True))}


def passes_of(traced: TaggedTrace) -> dict[int, Pass]:
    """The passes of a trace by their number, that of the prompt left out.

    Raises:
        NotSteadyError: streams share storages.
    """
    if any(aside.what != "empty_cache" for aside in traced.asides):
        raise NotSteadyError("streams share storages")
    found: dict[int, Pass] = {}
    before: dict[int, Role] = {}
    parts = sections(traced.marks, len(traced.events))
    # A part ends where the allocator's cache is emptied.
    for (phase, step), group in itertools.groupby(parts, key=lambda p: (p[0].phase, p[0].step)):
        spans = [(begin, end) for _, begin, end in group]
        if phase is Phase.DECODE:
            made = _Reader(traced, before).read(spans[0][0], spans[-1][1])
            found[step] = made
            # Of two with one name the younger has it.
            lasting = {aged(role): number for number, role in made.before.items()}
            before = {number: role for role, number in lasting.items()}
            before.update(zip(made.numbers, roles(made.storages), strict=True))
    return found


class _Reader:
    """Reads one pass."""

    def __init__(self, traced: TaggedTrace, before: dict[int, Role]) -> None:
        self._traced = traced
        self._before = dict(before)
        self._items: list[int] = []
        self._left: list[Role] = []
        self._dying: list[tuple[int, Role]] = []
        """Storages that die one right after the other do so in any order."""

    def read(self, begin: int, end: int) -> Pass:
        """The pass whose events these are."""
        traced, items, made = self._traced, self._items, dict[int, int]()
        emptied = {aside.index for aside in traced.asides}
        for index, event in enumerate(traced.events[begin:end], begin):
            if index in emptied:
                self._settle()
                items.append(EMPTIES)
            if event >= 0:
                self._settle()
                items.append(3 * len(made) + BORN)
                made[event] = len(made)
            elif ~event in made:
                self._dying.append((3 * made[~event] + DIES, ("", "", 0)))
            elif ~event in self._before:
                self._dying.append((_LEFT, self._before.pop(~event)))
            else:
                self._dying.append((OLDER, ("", "", 0)))
        self._settle()
        storages = [traced.storages[number] for number in made]
        return Pass(storages, tuple(items), tuple(self._left), list(made), self._before)

    def _settle(self) -> None:
        for number, role in sorted(self._dying):
            if number != _LEFT:
                self._items.append(number)
            else:
                self._items.append(3 * len(self._left) + LEFT)
                self._left.append(role)
        self._dying.clear()


def ending(seen: Pass) -> Pass:
    """A pass that is the last one, up to the last that it makes."""
    born = [at for at, item in enumerate(seen.items) if item >= 0 and item % 3 == BORN]
    return replace(seen, items=tuple(i for i in seen.items[: born[-1] + 1] if i != OLDER))


def kind_of(storage: Storage) -> tuple[Any, ...]:
    """What two storages have in common that differ in size only."""
    return storage.module, storage.op, storage.component, storage.stream


def difference(early: Any, late: Any) -> Any:
    """What is added to nested numbers from one pass to another.

    Raises:
        NotSteadyError: they are not of one kind.
    """
    if isinstance(late, list | tuple):
        if not isinstance(early, list | tuple) or len(early) != len(late):
            raise NotSteadyError("kernels are called with other arguments")
        return tuple(difference(one, two) for one, two in zip(early, late, strict=True))
    return late - early if not isinstance(late, str | bool | None) else 0
