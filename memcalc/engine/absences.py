"""Memory that leaves the GPU while PyTorch's allocator goes on counting it.

An engine that sleeps unmaps its weights and KV cache and maps them again later, which the allocator
does not see (vLLM's ``CuMemAllocator``).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from memcalc.records.trace import AllocatorCall, PhaseReading, Trace, sections
from memcalc.units import format_bytes

_SLEEPS = (
    "up to {} of an engine leave the GPU while it sleeps and are not counted then; PyTorch's own "
    "counters, such as max_memory_allocated(), go on counting them"
)


class Absence(msgspec.Struct, kw_only=True):
    """A range of addresses that is not on the GPU between two moments."""

    at: int
    bytes: int
    begin: int
    end: int | None = None
    """``None``: it never came back."""
    storages: tuple[int, ...] = ()
    """Numbers of the storages that lay in it."""


def take_away(trace: Trace, absences: Sequence[Absence]) -> Trace:
    """Return a trace in which absent storages die, and are born again as they come back."""
    absences = [one for one in absences if one.begin != one.end]
    if not absences:
        return trace
    leaving, returning = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for one in absences:
        leaving[one.begin] += one.storages
        returning[len(trace.events) + 1 if one.end is None else one.end] += one.storages
    storages, events, moved = list(trace.storages), list[int](), list[int]()
    numbers, absent, emptied = dict[int, int](), set[int](), list[AllocatorCall]()
    for moment in range(len(trace.events) + 1):
        moved.append(len(events))
        for number in [one for one in returning[moment] if one in absent]:
            numbers[number] = len(storages)
            events.append(len(storages))
            storages.append(trace.storages[number])
            absent.discard(number)
        if leaving[moment]:
            events += [~numbers.get(number, number) for number in leaving[moment]]
            absent.update(leaving[moment])
            emptied.append(AllocatorCall(index=len(events), what="empty_cache"))
        for event in trace.events[moment : moment + 1]:
            if ~event not in absent:
                events.append(event if event >= 0 else ~numbers.get(~event, ~event))
            absent.discard(~event)
    asides = (replace(one, index=moved[one.index]) for one in trace.asides)
    most = max(_absent_bytes(absences, one.begin)[1] for one in absences)
    return replace(
        trace,
        storages=tuple(storages),
        events=tuple(events),
        marks=tuple(replace(mark, index=moved[mark.index]) for mark in trace.marks),
        asides=tuple(sorted((*asides, *emptied), key=lambda one: one.index)),
        readings=tuple(_lower_readings(trace, absences)),
        assumptions=(_SLEEPS.format(format_bytes(most)), *trace.assumptions),
    )


def _lower_readings(trace: Trace, absences: Sequence[Absence]) -> Iterator[PhaseReading]:
    """Yield the peaks of each phase less the bytes that were absent all through it."""
    sizes = [storage.bytes for storage in trace.storages]
    changes = sorted({moment for one in absences for moment in (one.begin, one.end or 0)})
    of_phases = sections(trace.marks, len(trace.events))
    for reading, (_, begin, end) in zip(trace.readings, of_phases, strict=False):
        moments = [begin - 1, *(moment for moment in changes if begin <= moment <= end)]
        found = [_absent_bytes(absences, moment, sizes) for moment in moments]
        blocks, mapped = (min(one[at] for one in found) for at in (0, 1))
        lower = dict.fromkeys(("requested", "allocated", "active"), blocks)
        levels = {
            name: max(level - by, 0)
            for name, by in {**lower, "reserved": mapped}.items()
            if (level := getattr(reading, name)) is not None
        }
        yield replace(reading, **levels)


def _absent_bytes(
    absences: Sequence[Absence], moment: int, sizes: Sequence[int] = ()
) -> tuple[int, int]:
    """Return the bytes that are absent after a moment: of storages, and of mapped memory."""
    now = [one for one in absences if one.begin <= moment and (one.end is None or moment < one.end)]
    blocks = sum(sizes[number] for one in now for number in one.storages) if sizes else 0
    return blocks, sum(one.bytes for one in now)
