"""Detects memory that grows every step, from live bytes at equal points of steps."""

from __future__ import annotations

import itertools
from collections import Counter

from memcalc.records.prediction import Growth
from memcalc.records.trace import Phase, Trace

_POINTS = 3
"""Equal points that are compared: two differences that are the same are no accident."""


def growth(trace: Trace, room: int | None, reserved: int) -> Growth | None:
    """By how much a run grows in each of its last steps.

    Args:
        trace: of the run.
        room: bytes that the allocator may take of the GPU; ``None``: no GPU is named.
        reserved: bytes that it had taken at its peak.

    Returns:
        ``None``: it does not grow, or made too few steps to tell.
    """
    points = _points(trace)[-_POINTS:]
    if len(points) < _POINTS:
        return None
    levels, held = _held(trace, points)
    grown = [later - earlier for earlier, later in itertools.pairwise(levels)]
    if grown[0] <= 0 or any(one != grown[0] for one in grown):
        return None
    steps = max(0, (room - reserved) // grown[0]) if room is not None else None
    line, holder = (_most(trace, held, name) for name in ("line", "op"))
    return Growth(bytes=grown[0], line=line, holder=holder, steps=steps)


def _points(trace: Trace) -> list[int]:
    """The events at which the forward of each step but the first begins."""
    begins: dict[int, int] = {}
    for mark in trace.marks:
        if mark.phase is Phase.FORWARD and mark.step > 0:
            begins.setdefault(mark.step, mark.index)
    return [begins[step] for step in sorted(begins)]


def _held(trace: Trace, points: list[int]) -> tuple[list[int], list[int]]:
    """Bytes held at each point, and storages of the first of these steps that outlive the last."""
    levels, level, living = [], 0, set()
    waiting = list(points)
    for moment, event in enumerate(trace.events):
        while waiting and waiting[0] == moment:
            waiting.pop(0)
            levels.append(level)
        if event >= 0:
            level += trace.storages[event].bytes
            if points[0] <= moment < points[1]:
                living.add(event)
        else:
            level -= trace.storages[~event].bytes
            if moment < points[-1]:
                living.discard(~event)
    levels += [level] * len(waiting)
    return levels, sorted(living)


def _most(trace: Trace, storages: list[int], name: str) -> str:
    """What is said of most of the bytes of these storages."""
    found: Counter[str] = Counter()
    for number in storages:
        found[getattr(trace.storages[number], name)] += trace.storages[number].bytes
    return found.most_common(1)[0][0] if found else ""
