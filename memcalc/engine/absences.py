"""Memory that leaves the GPU while PyTorch's allocator goes on counting it.

An engine that sleeps unmaps its weights and KV cache and maps them again later, which the allocator
does not see (vLLM's ``CuMemAllocator``).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from memcalc.records.trace import AllocatorCall, PhaseReading, Trace
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
    since: int
    """Number of the phase in which it left."""
    end: int | None = None
    """``None``: it never came back."""
    until: int | None = None
    """Number of the phase in which it came back."""
    storages: tuple[int, ...] = ()
    """Numbers of the storages that lay in it."""


def take_away(trace: Trace, absences: Sequence[Absence]) -> Trace:
    """Return a trace in which storages that leave the GPU die, and are born again on return."""
    absences = [one for one in absences if one.begin != one.end]
    if not absences:
        return trace
    leaving, returning = (
        defaultdict[int, list[Absence]](list),
        defaultdict[int, list[Absence]](list),
    )
    for one in absences:
        leaving[one.begin].append(one)
        returning[len(trace.events) + 1 if one.end is None else one.end].append(one)
    storages, events = list(trace.storages), list[int]()
    numbers, absent, emptied = dict[int, int](), set[int](), list[AllocatorCall]()
    moved = list[list[tuple[int, int]]]()
    for moment in range(len(trace.events) + 1):
        moved.append([(-1, len(events))])
        for one in returning[moment]:
            for number in absent.intersection(one.storages):
                numbers[number] = len(storages)
                events.append(len(storages))
                storages.append(trace.storages[number])
            absent.difference_update(one.storages)
            moved[-1].append((one.until or 0, len(events)))
        for one in leaving[moment]:
            events += [~numbers.get(number, number) for number in one.storages]
            absent.update(one.storages)
            moved[-1].append((one.since, len(events)))
            emptied.append(AllocatorCall(index=len(events), what="empty_cache"))
        for event in trace.events[moment : moment + 1]:
            if ~event not in absent:
                events.append(event if event >= 0 else ~numbers.get(~event, ~event))
            absent.discard(~event)
    asides = (replace(one, index=moved[one.index][0][1]) for one in trace.asides)
    return replace(
        trace,
        storages=tuple(storages),
        events=tuple(events),
        marks=tuple(
            # What changed in phases before this one comes before it.
            replace(mark, index=max(at for phase, at in moved[mark.index] if phase < number))
            for number, mark in enumerate(trace.marks)
        ),
        asides=tuple(sorted((*asides, *emptied), key=lambda one: one.index)),
        readings=tuple(_lower_readings(trace, absences)),
        assumptions=(_SLEEPS.format(format_bytes(_peak_absent(absences))), *trace.assumptions),
    )


def _peak_absent(absences: Sequence[Absence]) -> int:
    """Return the most bytes that are absent at once."""
    return max(
        sum(b.bytes for b in absences if b.begin <= a.begin and (b.end is None or a.begin < b.end))
        for a in absences
    )


def _lower_readings(trace: Trace, absences: Sequence[Absence]) -> Iterator[PhaseReading]:
    """Yield the peaks of each phase less the bytes that were absent all through it."""
    for number, reading in enumerate(trace.readings):
        away = [
            one
            for one in absences
            if one.since < number and (one.until is None or number < one.until)
        ]
        blocks = sum(trace.storages[at].bytes for one in away for at in one.storages)
        lower = dict.fromkeys(("requested", "allocated", "active"), blocks)
        lower["reserved"] = sum(one.bytes for one in away)
        levels = {
            name: max(level - by, 0)
            for name, by in lower.items()
            if (level := getattr(reading, name)) is not None
        }
        yield replace(reading, **levels)
