"""Traces an optimizer step of many micro-batches through a few, and proves that this is enough.

A run of three micro-batches a step is traced; continued to four, it must equal a trace of four,
event by event. Then the middle one is repeated as often as the plan says: what it frees of the
micro-batch before, its copy frees of the copy before. Otherwise all of them are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from memcalc.records.steady import partners
from memcalc.records.trace import Mark, Phase, Storage, Trace
from memcalc.records.walk import interleaved
from memcalc.trace import traffic
from memcalc.trace.folding.tagged import same

BASE = 3
"""Micro-batches of the trace that is continued: the first, the last, and one like all others."""
LEAST = 2 * BASE + 2
"""Below this, traces of three and of four cost as much as a whole one."""
SAID = "micro-batches are traced a few times and continued, proven on one more"


def trace_accumulated(traced: Callable[[int], Trace], count: int) -> Trace | None:
    """Trace a run with so many micro-batches a step; ``None``: it is not proven that a few will do.

    Args:
        traced: traces the run with another number of them.
        count: how many there are.
    """
    base, one_more = traced(BASE), traced(BASE + 1)
    if base.asides or base.curve is not None or not same(continued(base, BASE + 1), one_more):
        return None
    flops = None
    if base.flops is not None and one_more.flops is not None:
        flops = base.flops + (one_more.flops - base.flops) * (count - BASE)
    whole = continued(base, count)
    sent = traffic.continued(base.sent, one_more.sent, count - BASE)
    return replace(whole, flops=flops, sent=sent, assumptions=(*base.assumptions, SAID))


def continued(base: Trace, count: int) -> Trace:
    """A trace of three micro-batches a step as one of ``count``."""
    happened = list(interleaved(base.events, base.marks, 0, len(base.events)))
    made = _Made(base.storages)
    position = 0
    for step in range(base.steps):
        begins = [
            place
            for place, item in enumerate(happened)
            if isinstance(item, Mark) and item.phase is Phase.FORWARD and item.step == step
        ]
        if len(begins) == BASE:
            made.take(happened[position : begins[2]])
            made.repeat(happened, begins[1], begins[2], count - BASE)
            position = begins[2]
    made.take(happened[position:])
    return replace(
        base,
        storages=tuple(made.storages),
        events=tuple(made.events),
        marks=tuple(made.marks),
    )


class _Made:
    """A longer run as far as it is written."""

    def __init__(self, base: Sequence[Storage]) -> None:
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self._base = base
        self._now: dict[int, int] = {}
        """The storage that stands for each one of the base trace."""

    def take(self, happened: Sequence[int | Mark]) -> None:
        """What happens next, as in the base trace."""
        for item in happened:
            if isinstance(item, Mark):
                self.marks.append(replace(item, index=len(self.events)))
            elif item >= 0:
                self._now[item] = len(self.storages)
                self.events.append(len(self.storages))
                self.storages.append(self._base[item])
            else:
                self.events.append(~self._now[~item])

    def repeat(self, happened: Sequence[int | Mark], begin: int, end: int, times: int) -> None:
        """The micro-batch between these places, which was just taken, over and over."""
        span = happened[begin:end]
        events = [item for item in happened if not isinstance(item, Mark)]
        before = sum(not isinstance(item, Mark) for item in happened[:begin])
        within = sum(not isinstance(item, Mark) for item in span)
        held = partners(events, self._base.__getitem__, before, before + within)
        born = {item for item in span if not isinstance(item, Mark) and item >= 0}
        for _ in range(times):
            # What it found and freed is, from now on, what the last one left in its place.
            for found, left in held.successor.items():
                self._now[found] = self._now[left]
            self.take(
                [
                    item
                    for item in span
                    if isinstance(item, Mark)
                    or item in born
                    or ~item in born
                    or ~item in held.successor
                ]
            )
