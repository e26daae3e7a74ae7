"""A trace as a sequence of allocator operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from memcalc.allocator.replay import Op
from memcalc.records.trace import Aside, Trace


def as_it_ran(trace: Trace) -> Iterator[tuple[Any, ...]]:
    """Every event once, with what else the allocator was told of."""
    marks = [(mark.index, (Op.MARK, (mark.step, mark.phase))) for mark in trace.marks]
    told = [(aside.index, _told(aside)) for aside in trace.asides]
    # Of those before the same event, in the order they are listed.
    between = deque(sorted([*marks, *told], key=lambda item: item[0]))
    for index, event in enumerate(trace.events):
        while between and between[0][0] <= index:
            yield between.popleft()[1]
        if event < 0:
            yield ~event, 0
            continue
        storage = trace.storages[event]
        yield (event, storage.bytes, storage.stream) if storage.stream else (event, storage.bytes)
    yield from (item for _, item in between)


def _told(aside: Aside) -> tuple[Any, ...]:
    if aside.what == "used_by":
        return Op.USED_BY, aside.storage, aside.stream
    told = Op(aside.what), aside.stream
    return (*told, aside.bytes) if aside.bytes else told
