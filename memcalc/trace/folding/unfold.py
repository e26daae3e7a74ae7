"""From a trace with a few repetitions of each stack to one with any number.

The repetitions before and after the middle one stay as they are, the middle one is copied. Within
the copies a death of a storage of a neighbouring repetition is the death of the neighbouring copy's
own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from memcalc.records.trace import Aside, Mark, Storage
from memcalc.records.walk import sections
from memcalc.trace.folding.layers import Stack
from memcalc.trace.folding.tagged import UNTAGGED, TaggedTrace, unit_of

BASE = 3
"""Repetitions in the trace that is continued: the first and the last may differ from the others."""
WRAPPED_BASE = 5
"""Where a wrapper gathers the next layer ahead, so that the second and the one before the last
differ too."""


class CannotUnfoldError(Exception):
    """The trace does not repeat in a way that can be continued."""


class _Run(msgspec.Struct, frozen=True):
    """Neighbouring events of one phase with one tag."""

    start: int
    end: int
    tag: int
    segment: int
    """Number of the phase among the marks."""


def unfold(
    base: TaggedTrace,
    stacks: Sequence[Stack],
    repeats: int,
    increments: dict[int, int],
    length: int = BASE,
) -> TaggedTrace:
    """Continue a trace of a few repetitions to ``repeats``.

    Args:
        base: the trace with few repetitions.
        stacks: what repeats; the index of a stack is the upper part of a tag.
        repeats: wanted.
        increments: storages (by number) whose size grows with each repetition, and by how much.
        length: repetitions in the base trace; an odd number.

    Raises:
        CannotUnfoldError: a copy would free what it does not own.
    """
    return _Unfolding(base, stacks, repeats, increments, length).result()


class _Unfolding(msgspec.Struct):
    base: TaggedTrace
    stacks: Sequence[Stack]
    repeats: int
    increments: dict[int, int]
    length: int
    storages: list[Storage] = msgspec.field(default_factory=list)
    storage_tags: list[int] = msgspec.field(default_factory=list)
    events: list[int] = msgspec.field(default_factory=list)
    event_tags: list[int] = msgspec.field(default_factory=list)
    marks: list[Mark] = msgspec.field(default_factory=list)
    origins: list[int] = msgspec.field(default_factory=list)
    places: dict[str, tuple[Stack, int, str] | None] = msgspec.field(default_factory=dict)
    freed_by_neighbour: set[int] = msgspec.field(default_factory=set)
    """Storages of the middle that the repetition beside it frees."""
    alive: dict[int, dict[int, int]] = msgspec.field(default_factory=dict)
    """Of each storage of the base trace: the copies that live, by repetition."""

    @property
    def middle(self) -> int:
        """The repetition that is copied."""
        return self.length // 2

    @property
    def more(self) -> int:
        """How many copies there are beside the middle one itself."""
        return self.repeats - self.length

    def result(self) -> TaggedTrace:
        runs = _runs(self.base)
        for index, run in enumerate(runs):
            if unit_of(run.tag) == self.middle:
                self._find_freed_by_neighbour(runs, index)
        marked = 0
        for index, run in enumerate(runs):
            marked = self._mark(run.segment, marked)
            if unit_of(run.tag) == self.middle:
                self._copy(runs, index)
            else:
                self._keep(run)
        self._mark(len(self.base.marks) - 1, marked)
        return TaggedTrace(
            storages=self.storages,
            storage_tags=self.storage_tags,
            events=self.events,
            event_tags=self.event_tags,
            marks=self.marks,
            asides=self._asides(),
            origins=self.origins,
        )

    def _asides(self) -> list[Aside]:
        """Where the marks are now that they were at."""
        now = {
            before.index: after.index
            for before, after in zip(self.base.marks, self.marks, strict=True)
        }
        return [replace(aside, index=now[aside.index]) for aside in self.base.asides]

    def _find_freed_by_neighbour(self, runs: list[_Run], index: int) -> None:
        """Note the middle's storages that the next repetition frees, not the middle itself."""
        run = runs[index]
        lower, upper = self._sides(runs, index)
        for offset, event in enumerate(self.base.events[run.start : run.end]):
            if event >= 0 or self.base.storage_tags[~event] >> 12 != run.tag >> 12:
                continue
            shift = unit_of(self.base.storage_tags[~event]) - self.middle
            if shift:
                peer = upper if shift < 0 else lower
                self.freed_by_neighbour.add(self._counterpart(run, offset, peer))

    def _mark(self, segment: int, marked: int) -> int:
        for mark in self.base.marks[marked : segment + 1]:
            self.marks.append(replace(mark, index=len(self.events)))
        return max(marked, segment + 1)

    def _keep(self, run: _Run) -> None:
        for event in self.base.events[run.start : run.end]:
            if event >= 0:
                tag = self.base.storage_tags[event]
                unit = max(unit_of(tag), 0)
                layer = unit + self.more if unit > self.middle else unit
                self._birth(event, layer, run.tag)
            else:
                self._end(~event, run)

    def _end(self, storage: int, run: _Run) -> None:
        """Outside of the copies: all of them die, unless each is freed by its neighbour."""
        copies = self.alive.get(storage, {})
        owners = list(copies)
        if storage in self.freed_by_neighbour:
            above = unit_of(run.tag) > self.middle
            owners = [self.middle + self.more if above else self.middle]
        if not owners or any(owner not in copies for owner in owners):
            raise CannotUnfoldError("a storage dies twice")
        for owner in owners:
            self._append(~copies.pop(owner), run.tag)

    def _copy(self, runs: list[_Run], index: int) -> None:
        run = runs[index]
        lower, upper = self._sides(runs, index)
        order = range(self.middle, self.middle + self.more + 1)
        for layer in order if _ascends(run, lower, upper) else reversed(order):
            for offset, event in enumerate(self.base.events[run.start : run.end]):
                if event >= 0:
                    self._birth(event, layer, run.tag)
                else:
                    self._free(run, layer, offset, lower, upper)

    def _free(
        self, run: _Run, layer: int, offset: int, lower: _Run | None, upper: _Run | None
    ) -> None:
        storage = ~self.base.events[run.start + offset]
        tag = self.base.storage_tags[storage]
        if tag == UNTAGGED or tag >> 12 != run.tag >> 12:
            raise CannotUnfoldError("a repetition frees what was made outside of its stack")
        shift = unit_of(tag) - self.middle
        owner = layer + shift
        if shift and self.middle <= owner <= self.middle + self.more:
            # The copy's neighbour is a copy too: what it made is what the middle one makes.
            storage = self._counterpart(run, offset, upper if shift < 0 else lower)
        number = self.alive.get(storage, {}).pop(owner, None)
        if number is None:
            raise CannotUnfoldError("a repetition frees what its neighbour does not hold")
        self._append(~number, run.tag)

    def _counterpart(self, run: _Run, offset: int, peer: _Run | None) -> int:
        """The storage of the middle that the repetition beside it frees at the same place.

        The place is found by what the storage is, and by how many of its like died before it.
        """
        storage = ~self.base.events[run.start + offset]
        kind, tag = self._kind(storage), self.base.storage_tags[storage]
        earlier = self._deaths(run.start, run.start + offset, kind, tag)
        middle = run.tag
        found = self._deaths(peer.start, peer.end, kind, middle) if peer is not None else []
        if len(found) <= len(earlier):
            raise CannotUnfoldError("neighbouring repetitions differ")
        return found[len(earlier)]

    def _deaths(self, start: int, end: int, kind: object, tag: int) -> list[int]:
        return [
            ~event
            for event in self.base.events[start:end]
            if event < 0 and self.base.storage_tags[~event] == tag and self._kind(~event) == kind
        ]

    def _kind(self, storage: int) -> object:
        known = self.base.storages[storage]
        inside = re.sub(r"\.\d+", "", known.module, count=1)
        return (
            *(known.bytes, known.op, known.phase, known.step),
            *(known.component, known.stream, inside),
        )

    def _birth(self, origin: int, layer: int, tag: int) -> None:
        number = len(self.storages)
        storage = self.base.storages[origin]
        grown = self.increments.get(origin, 0) * self.more
        module = self._rename(storage.module, layer)
        if grown or module != storage.module:
            storage = replace(storage, bytes=storage.bytes + grown, module=module)
        self.storages.append(storage)
        self.storage_tags.append(self.base.storage_tags[origin])
        self.origins.append(origin)
        self.alive.setdefault(origin, {})[layer] = number
        self._append(number, tag)

    def _rename(self, module: str, layer: int) -> str:
        """Give a module of the short stack its name in the long one."""
        if module not in self.places:
            self.places[module] = _place(module, self.stacks)
        place = self.places[module]
        if place is None:
            return module
        stack, index, rest = place
        unit = stack.unit(index, self.length)
        behind = self.more if index >= stack.prefix else 0
        shift = layer - unit if unit is not None else behind
        return f"{stack.path}.{index + shift * stack.period}{rest}"

    def _append(self, event: int, tag: int) -> None:
        self.events.append(event)
        self.event_tags.append(tag)

    def _sides(self, runs: list[_Run], index: int) -> tuple[_Run | None, _Run | None]:
        """The runs of the repetitions below and above beside a run of the middle one."""
        near = [_neighbour(runs, index, step) for step in (-1, 1)]
        by_unit = {unit_of(run.tag): run for run in near if run is not None}
        return by_unit.get(self.middle - 1), by_unit.get(self.middle + 1)


def _place(module: str, stacks: Sequence[Stack]) -> tuple[Stack, int, str] | None:
    """Stack, index of the layer and the name inside it; ``None`` outside of all stacks."""
    for stack in stacks:
        match = re.match(rf"{re.escape(stack.path)}\.(\d+)(.*)", module)
        if match:
            return stack, int(match[1]), match[2]
    return None


def _ascends(run: _Run, lower: _Run | None, upper: _Run | None) -> bool:
    if lower is not None:
        return lower.start < run.start
    return upper is None or upper.start > run.start


def _neighbour(runs: list[_Run], index: int, step: int) -> _Run | None:
    """The run before or after, if it is of the same phase and stack."""
    other = index + step
    if not 0 <= other < len(runs):
        return None
    run, near = runs[index], runs[other]
    same = near.segment == run.segment and near.tag >> 12 == run.tag >> 12
    return near if same else None


def _runs(base: TaggedTrace) -> list[_Run]:
    runs: list[_Run] = []
    for segment, (_, begin, end) in enumerate(sections(base.marks, len(base.event_tags))):
        for tagged, group in itertools.groupby(range(begin, end), key=base.event_tags.__getitem__):
            inside = list(group)
            runs.append(_Run(inside[0], inside[-1] + 1, tagged, segment))
    return runs
