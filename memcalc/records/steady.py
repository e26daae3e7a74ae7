"""More steps like the last one, without running them.

After the second step a run repeats itself, but the allocator's cache does not yet: where a block
is free decides where the next one goes, and segments are still added. So before the steady state
is read off, the last step's events are replayed again. What it frees of the step before, its copy
frees of the copy before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from memcalc.records.trace import Mark, Phase, Trace
from memcalc.records.walk import interleaved, last_step

STEPS = 4
"""Of a run whose last step is taken for all that follow, as ``memcalc measure`` does."""


def repeats(trace: Trace) -> int:
    """How often the last step of a trace is repeated, so that there are so many.

    A script's run is taken as it is.
    """
    return 0 if trace.whole else max(1, STEPS - trace.steps)


def continued(
    events: Sequence[int],
    marks: Sequence[Mark],
    kind: Callable[[int], Hashable],
    *,
    storages: int,
    more: int,
) -> Iterator[int | Mark]:
    """The events of a run with its last step repeated, each phase's mark before its events.

    Args:
        events: ``n``: storage ``n`` is born; ``~n``: it dies.
        marks: phases of the run.
        kind: what must be equal for two storages to have the same part in two steps.
        storages: their number; copy ``k`` of storage ``n`` is storage ``n + k * storages``.
        more: how often the last step is repeated.
    """
    begin, end = last_step(events, marks)
    final = max(mark.step for mark in marks)
    after = [mark for mark in marks if mark.phase is Phase.EVAL]
    step = [mark for mark in marks if mark.step == final and mark.phase is not Phase.EVAL]
    yield from interleaved(events, [mark for mark in marks if mark not in after], 0, end)
    held = partners(events, kind, begin, end)
    before: dict[int, int] = {}
    """Of what an earlier step made and this one frees: the copy that stands for it now."""
    for copy in range(1, more + 1):
        shift = copy * storages
        made: dict[int, int] = {}
        for event in interleaved(events, step, begin, end):
            if isinstance(event, Mark):
                yield Mark(index=event.index, phase=event.phase, step=final + copy)
            elif event >= 0 and event not in held.kept:
                made[event] = event + shift
                yield event + shift
            elif event < 0 and ~event in made:
                yield ~made[~event]
            elif event < 0 and ~event in held.successor:
                last = held.successor[~event]
                yield ~before.get(last, last)
        before = made
    for event in interleaved(events, after, end, len(events)):
        if isinstance(event, Mark):
            yield Mark(index=event.index, phase=event.phase, step=final + more)
        elif event < 0:
            yield ~before.get(~event, ~event)
        else:
            yield event


class Held:
    """How one step hands over to the next."""

    __slots__ = ("kept", "successor")

    def __init__(self) -> None:
        self.kept: set[int] = set()
        """Storages that the last step makes and no step would free: made once."""
        self.successor: dict[int, int] = {}
        """Of each storage that the last step found and freed: what it left in its place."""


def partners(events: Sequence[int], kind: Callable[[int], Hashable], begin: int, end: int) -> Held:
    """What the step between these events hands over to the next one.

    Args:
        events: of the whole run.
        kind: what must be equal for two storages to have the same part in two steps.
        begin: index of the step's first event.
        end: index after its last.
    """
    born = [event for event in events[begin:end] if event >= 0]
    died = {~event for event in events[begin:end] if event < 0}
    here = set(born)
    freed: dict[Hashable, list[int]] = defaultdict(list)
    for storage in sorted(died - here):
        freed[kind(storage)].append(storage)
    held = Held()
    for storage in born:
        if storage in died:
            continue
        waiting = freed.get(kind(storage))
        if waiting:
            held.successor[waiting.pop(0)] = storage
        else:
            held.kept.add(storage)
    return held
