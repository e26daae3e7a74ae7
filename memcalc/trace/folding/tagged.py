"""A trace as recorded: like ``records.Trace``, with the repetition each event happened in."""

from __future__ import annotations

import hashlib

import msgspec

from memcalc.records.model import Inventory
from memcalc.records.trace import Aside, Mark, Sent, Storage, Trace

UNTAGGED = -1
_BITS = 12


def tag(stack: int, unit: int) -> int:
    """Name repetition ``unit`` of the model's stack number ``stack``."""
    return stack << _BITS | unit


def unit_of(tagged: int) -> int:
    """The repetition a tag names; ``UNTAGGED`` stays ``UNTAGGED``."""
    return tagged if tagged == UNTAGGED else tagged & ((1 << _BITS) - 1)


class TaggedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Storages, their births (``n``) and deaths (``~n``), and where in the stacks each happened."""

    storages: list[Storage]
    storage_tags: list[int]
    """The tag of each storage's birth."""
    events: list[int]
    event_tags: list[int]
    """The tag of each event."""
    marks: list[Mark]
    asides: list[Aside] = msgspec.field(default_factory=list)
    """Each where a mark is."""
    inventory: Inventory | None = None
    """Of the model as it ran, where only that shows it."""
    flops: int | None = 0
    """Of the last step; ``None`` where some could not be counted."""
    sent: tuple[Sent, ...] = ()
    """In the last step."""
    origins: list[int] | None = None
    """In an unfolded trace: the storage of the base trace that each is, or is a copy of."""


def canonical(trace: TaggedTrace) -> list[object]:
    """A form in which two traces of the same run are equal.

    Storages that die one right after the other do so in any order: it changes neither a peak nor
    what the allocator makes of them.
    """
    form: list[object] = []
    deaths: list[int] = []
    for event in trace.events:
        if event < 0:
            deaths.append(~event)
            continue
        if deaths:
            form.append(tuple(sorted(deaths)))
            deaths = []
        form.append(trace.storages[event])
    form.append(tuple(sorted(deaths)))
    form.extend((mark.phase, mark.step) for mark in trace.marks)
    return form


def fingerprint(trace: TaggedTrace) -> str:
    """What two traces have in common if, and only if, they are equal in canonical form."""
    return hashlib.sha256(msgspec.msgpack.encode(canonical(trace))).hexdigest()


def same(one: Trace, other: Trace) -> bool:
    """Are these traces of the same run, storage by storage and event by event?"""
    return canonical(_bare(one)) == canonical(_bare(other))


def _bare(trace: Trace) -> TaggedTrace:
    return TaggedTrace(
        storages=list(trace.storages),
        storage_tags=[],
        events=list(trace.events),
        event_tags=[],
        marks=list(trace.marks),
    )
