"""Iterates over a run's events with their phases."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from memcalc.records.trace import ONCE, Component, Mark, Phase, Storage, Trace


def sections(marks: Sequence[Mark], count: int) -> Iterator[tuple[Mark, int, int]]:
    """Each mark and where its events begin and end, of ``count`` events in all."""
    ends = (*(mark.index for mark in marks[1:]), count)
    for mark, end in zip(marks, ends, strict=True):
        yield mark, mark.index, end


def changes(events: Sequence[int], sizes: Sequence[int]) -> Iterator[int]:
    """Bytes that each event adds; negative where a storage dies."""
    return (sizes[event] if event >= 0 else -sizes[~event] for event in events)


def walk(trace: Trace) -> Iterator[tuple[Mark, int, Storage]]:
    """Every event in order: the phase it happens in, the event itself, and its storage."""
    for mark, begin, end in sections(trace.marks, len(trace.events)):
        for event in trace.events[begin:end]:
            yield mark, event, trace.storages[event if event >= 0 else ~event]


def counts(trace: Trace, phase: Phase, step: int) -> bool:
    """Is this part of a run among those whose peak is asked for?

    Of a script all are. Else the last step stands for all others, and resuming for itself, and so
    do loading and preparing where weights change on the way.
    """
    if trace.whole:
        return True
    if phase is Phase.LOAD:
        return any(mark.phase is Phase.PREPARE for mark in trace.marks)
    return step == (0 if phase in ONCE else trace.steps - 1)


def highest(trace: Trace) -> dict[Phase, int]:
    """The event after which each phase of the steady step holds the most requested bytes.

    What is held when a phase begins counts as its own.
    """
    sizes = [storage.bytes for storage in trace.storages]
    levels = [0, *accumulate(changes(trace.events, sizes))]
    found: dict[Phase, int] = {}
    for mark, begin, end in sections(trace.marks, len(trace.events)):
        if not counts(trace, mark.phase, mark.step):
            continue
        # Among equals one inside the phase, and only then the moment at which it begins.
        top = max((*range(begin + 1, end + 1), begin), key=levels.__getitem__)
        if mark.phase not in found or levels[top] > levels[found[mark.phase] + 1]:
            found[mark.phase] = top - 1
    return found


def alive(trace: Trace, event: int) -> list[int]:
    """Numbers of the storages alive right after an event, in order of birth."""
    living: dict[int, None] = {}
    for happened in trace.events[: event + 1]:
        if happened >= 0:
            living[happened] = None
        else:
            del living[~happened]
    return list(living)


def components(trace: Trace, event: int) -> dict[Component, int]:
    """Bytes alive right after an event, by component."""
    held = dict.fromkeys(Component, 0)
    for number in alive(trace, event):
        storage = trace.storages[number]
        held[storage.component] += storage.bytes
    return held


def most_of(trace: Trace, component: Component) -> int:
    """Bytes of one component when there are most of them."""
    level = most = 0
    for _, event, storage in walk(trace):
        if storage.component is component:
            level += storage.bytes if event >= 0 else -storage.bytes
            most = max(most, level)
    return most


def last_step(events: Sequence[int], marks: Sequence[Mark]) -> tuple[int, int]:
    """Where the last step begins and where it ends; after that comes evaluation, or the end.

    The last zero_grad is as long as the one before it; what dies after it, dies with the program.
    """
    final = max(mark.step for mark in marks)
    begin = next(m.index for m in marks if m.step == final and m.phase is Phase.FORWARD)
    clearing = [0] * (final + 1)
    for mark, start, end in sections(marks, len(events)):
        if mark.phase is Phase.EVAL:
            return begin, start
        if mark.phase is Phase.ZERO_GRAD:
            clearing[mark.step] += end - start
    surplus = clearing[-1] - clearing[-2] if final else 0
    return begin, len(events) - max(0, surplus)


def program_end(trace: Trace) -> int:
    """How many events there are before the program ends and frees what is left.

    An evaluation ends with the last event of a storage of its own; a script ends by itself.
    """
    if trace.whole:
        return len(trace.events)
    own = [
        index for index, (_, _, storage) in enumerate(walk(trace)) if storage.phase is Phase.EVAL
    ]
    if own and any(mark.phase is Phase.EVAL for mark in trace.marks):
        return own[-1] + 1
    return last_step(trace.events, trace.marks)[1]
