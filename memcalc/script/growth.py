"""Finds memory that a program keeps of every step and never frees.

A batch that grows is no leak: the one before is freed. So what counts are tensors of each step that
outlive the steps after it.
"""

from collections import Counter
from itertools import pairwise

from memcalc.records.prediction import Growth
from memcalc.records.trace import FILLED, GRAPH, Component, Phase, Storage, Trace

_FEWEST = 3
"""Steps from which tensors must be left before this is no accident."""
_MADE_ONCE = (Component.WEIGHTS, Component.OPTIMIZER_STATE, Component.WORKSPACES)
"""In one step for one parameter or kernel, and for another in the next."""


def find_growth(trace: Trace, room: int | None, reserved: int) -> Growth | None:
    """Return what a run leaves behind in each step; ``None``: nothing, or too few steps to tell.

    Args:
        trace: the run.
        room: bytes that the allocator may take; ``None``: no GPU is named.
        reserved: bytes that it has taken so far.
    """
    points = _points(trace)
    if len(points) < _FEWEST + 1:
        return None
    left, more = _left(trace, points)
    if more <= 0:
        return None
    watched = len(left) <= _FEWEST
    kept = _from_the_same_lines(left) if watched else left
    sizes = [sum(one.bytes for one in of_step) for of_step in kept]
    growing = sizes[1:] if watched else _from_first(sizes)
    each = round(sum(growing) / len(growing)) if growing else 0
    if not each:
        return None
    every = [one for of_step in kept for one in of_step]
    first = [one for of_step in kept[:_FEWEST] for one in of_step]
    holder, _, filled = _keeper(every).partition(FILLED)
    return Growth(
        bytes=each,
        # Of later steps only the lines of backward are known.
        line=_most(first or every, "line"),
        holder=holder,
        filled=filled,
        component=Component(_most(every, "component")),
        varies=len(set(growing)) > 1,
        steps=max(0, (room - reserved) // each) if room is not None else None,
    )


def _points(trace: Trace) -> list[int]:
    """Return the events at which the backward of each step begins: its batch replaced the last.

    Where nothing is trained, they are those at which each pass of a model begins.
    """
    begins: dict[int, int] = {}
    for mark in trace.marks:
        if mark.phase is Phase.BACKWARD:
            begins.setdefault(mark.step, mark.index)
    passes = [mark.index for mark in trace.marks if mark.phase in (Phase.FORWARD, Phase.EVAL)]
    return [begins[step] for step in sorted(begins)] or passes


def _left(trace: Trace, points: list[int]) -> tuple[list[list[Storage]], int]:
    """What each step but the last leaves alive at the last point; and how many more that makes.

    The last step is not over there: its batch and its outputs live on. What is older is counted,
    and not weighed: of three batches that are always kept there are three, whatever their size.
    """
    born: dict[int, int] = {}
    older: list[int] = []
    fresh = 0
    for moment, event in enumerate((*trace.events[: points[-1]], 0)):
        while len(older) < len(points) and points[len(older)] <= moment:
            older.append(len(born) - fresh)
            fresh = 0
        if moment == points[-1]:
            break
        if event >= 0:
            born[event] = len(older) - 1
            fresh += 1
        elif born.pop(~event) == len(older) - 1:
            fresh -= 1
    found: list[list[Storage]] = [[] for _ in points[:-2]]
    for number, step in born.items():
        storage = trace.storages[number]
        if 0 <= step < len(found) and storage.component not in _MADE_ONCE:
            found[step].append(storage)
    # In the first steps optimizers make their state, which is older from the second on.
    return found, older[-1] - older[len(points) // 2]


def _from_the_same_lines(left: list[list[Storage]]) -> list[list[Storage]]:
    """What lines of code leave of every step; of few steps all lines are known."""
    lines = set.intersection(*({one.line for one in of_step} for of_step in left)) - {""}
    return [[one for one in of_step if one.line in lines] for of_step in left]


def _from_first(sizes: list[int]) -> list[int]:
    """What is left of each step since some is left again and again until the end; else nothing."""
    steps = [step for step, size in enumerate(sizes) if size and step]
    if len(steps) < _FEWEST:
        return []
    longest = max(later - earlier for earlier, later in pairwise(steps))
    ends = len(sizes) - steps[-1] <= longest
    return sizes[steps[0] :] if ends and steps[0] <= longest else []


def _keeper(storages: list[Storage]) -> str:
    """The variable that holds most of these storages, or a graph that does; empty: unknown."""
    filled = [one for one in storages if FILLED in one.op]
    graphs = [one for one in filled if GRAPH in one.op]
    most = 2 * sum(one.bytes for one in filled) >= sum(one.bytes for one in storages if one.op)
    return _most(filled if most else graphs, "op")


def _most(storages: list[Storage], name: str) -> str:
    """What is said of most of the bytes of these storages, if anything."""
    found: Counter[str] = Counter()
    for one in storages:
        found[getattr(one, name)] += one.bytes
    del found[""]
    return found.most_common(1)[0][0] if found else ""
