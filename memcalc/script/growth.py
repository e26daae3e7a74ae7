"""Finds memory that a program keeps of every step and never frees.

A batch that grows is no leak: the one before is freed. So only tensors of a step that outlive the
steps after it count.
"""

from bisect import bisect_right
from collections import Counter
from itertools import accumulate, pairwise

from msgspec.structs import replace

from memcalc.records.prediction import Growth
from memcalc.records.trace import EMPTIED, FILLED, GRAPH, Component, Phase, Storage, Trace

_FEWEST = 3
"""The fewest steps that must leave tensors before this is no accident."""
_MADE_ONCE = (Component.WEIGHTS, Component.OPTIMIZER_STATE, Component.WORKSPACES)
"""Made in one step for one parameter or kernel, and for another in the next."""


def find_growth(trace: Trace, room: int | None, reserved: int, *, ended: bool) -> Growth | None:
    """Return the memory that each step leaks, or None: no leak, or too few steps to tell.

    Args:
        trace: the run.
        room: bytes that the allocator may take; None: no GPU is named.
        reserved: bytes that it has taken so far.
        ended: the program ran to its end, so that what its loops empty was emptied.
    """
    found = (_grow_between(trace, points) for points in (_find_steps(trace), _find_passes(trace)))
    growth = next(filter(None, found), None)
    if growth is not None and ended and EMPTIED in growth.filled:
        return None
    if growth is None or room is None:
        return growth
    return replace(growth, steps=max(0, (room - reserved) // growth.bytes))


def _grow_between(trace: Trace, points: list[int]) -> Growth | None:
    """Return the memory kept of each interval between events, or None if it does not grow."""
    if len(points) < _FEWEST + 1:
        return None
    leftovers, more = _find_leftovers(trace, points)
    if more <= 0:
        return None
    if len(leftovers) <= _FEWEST:
        # All lines of few steps are known: those that leave something of every step count.
        lines = set.intersection(*({one.line for one in step} for step in leftovers)) - {""}
        leftovers = [[one for one in step if one.line in lines] for step in leftovers]
        growing = [sum(one.bytes for one in step) for step in leftovers[1:]]
    else:
        growing = _drop_before_growth([sum(one.bytes for one in step) for step in leftovers])
    each = round(sum(growing) / len(growing)) if growing else 0
    if not each:
        return None
    every = [one for step in leftovers for one in step]
    first = [one for step in leftovers[:_FEWEST] for one in step]
    holder, _, filled = _find_holder(every).partition(FILLED)
    return Growth(
        bytes=each,
        # Only the lines of backward are known in later steps.
        line=_most_common(first or every, "line"),
        holder=holder,
        filled=filled,
        component=Component(_most_common(every, "component")),
        varies=len(set(growing)) > 1,
    )


def _find_steps(trace: Trace) -> list[int]:
    """Return the event index at which the backward of each step begins."""
    begins: dict[int, int] = {}
    for mark in trace.marks:
        if mark.phase is Phase.BACKWARD:
            begins.setdefault(mark.step, mark.index)
    return [begins[step] for step in sorted(begins)]


def _find_passes(trace: Trace) -> list[int]:
    """Return the event index of each forward pass that no backward follows.

    Evaluations before the first backward may gather what it learns from: alone they do not count.
    """
    found: list[tuple[int, int]] = []
    forwards: list[tuple[int, int]] = []
    backwards = 0
    for mark in trace.marks:
        if mark.phase is Phase.BACKWARD:
            backwards += 1
            forwards.clear()
        elif mark.phase is Phase.EVAL:
            found.append((mark.index, backwards))
        elif mark.phase is Phase.FORWARD:
            forwards.append((mark.index, backwards))
    found += forwards
    after = {before for _, before in found}
    return [index for index, _ in sorted(found)] if len(after) > 1 or backwards in after else []


def _find_leftovers(trace: Trace, points: list[int]) -> tuple[list[list[Storage]], int]:
    """Return storages never freed by step, without the last two, and by how many they grow.

    The last step is not over: its batch and outputs live on. Whether older tensors become more is
    counted and not weighed: three batches that are always kept are three, of any size. In the
    first steps optimizers make their state: the count begins in the middle. What a list gathers
    until it is emptied is no leak: where older tensors were freed, the fewest are looked at.

    Returns:
        The tensors by step, and how many more older tensors there are at the end.
    """
    died = {~event: moment for moment, event in enumerate(trace.events) if event < 0}
    lives: list[tuple[int, int, int]] = []
    older = [0] * (len(points) + 1)
    for moment, number in enumerate(trace.events[: points[-1]]):
        if number >= 0:
            born = bisect_right(points, moment)
            dies = bisect_right(points, died.get(number, points[-1]))
            lives.append((number, born - 1, dies))
            if born + 1 < dies:
                older[born + 1] += 1
                older[dies] -= 1
    older = [*accumulate(older)]
    end = len(points) - 1
    freed = [at for at in range(max(_FEWEST, (end + 1) // 2), end) if older[at] < older[at - 1]]
    end = min((end, *freed), key=older.__getitem__)
    found: list[list[Storage]] = [[] for _ in points[: end - 1]]
    for number, step, dies in lives:
        storage = trace.storages[number]
        if 0 <= step < len(found) and dies > end and storage.component not in _MADE_ONCE:
            found[step].append(storage)
    return found, older[end] - older[(end + 1) // 2]


def _drop_before_growth(sizes: list[int]) -> list[int]:
    """Drop the sizes of steps before growth begins; empty if it does not recur to the end."""
    steps = [step for step, size in enumerate(sizes) if size and step]
    if len(steps) < _FEWEST:
        return []
    longest = max(later - earlier for earlier, later in pairwise(steps))
    ends = len(sizes) - steps[-1] <= longest
    return sizes[steps[0] :] if ends and steps[0] <= longest else []


def _find_holder(storages: list[Storage]) -> str:
    """Return the name of the variable or graph that holds most bytes, or empty: unknown."""
    filled = [one for one in storages if FILLED in one.op]
    graphs = [one for one in filled if GRAPH in one.op]
    most = 2 * sum(one.bytes for one in filled) >= sum(one.bytes for one in storages if one.op)
    return _most_common(filled if most else graphs, "op")


def _most_common(storages: list[Storage], name: str) -> str:
    """Return the value of an attribute that most bytes of these storages have, or empty."""
    found: Counter[str] = Counter()
    for one in storages:
        found[getattr(one, name)] += one.bytes
    del found[""]
    return found.most_common(1)[0][0] if found else ""
