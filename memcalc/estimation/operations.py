"""A trace as what the allocator is told, one operation after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memcalc.allocator.replay import Op
from memcalc.records.trace import Aside, Mark, Trace


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


def replayable(
    stream: Iterable[int | Mark],
    sizes: Sequence[int],
    streams: Sequence[tuple[int, int | None]] | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Events and marks as the allocator takes them; ``n + k * len(sizes)`` is a copy of ``n``.

    Args:
        stream: births and deaths of storages by number, and marks of phases.
        sizes: bytes of each storage.
        streams: of each storage the stream it is made on, and another one that still uses it when
            it dies; ``None``: all on the default one.
    """
    count = len(sizes)
    for event in stream:
        if isinstance(event, Mark):
            yield Op.MARK, (event.step, event.phase)
        elif event >= 0:
            number = event % count
            on = streams[number][:1] if streams is not None else ()
            yield event, sizes[number], *on
        else:
            other = streams[~event % count][1] if streams is not None else None
            if other is not None:
                yield Op.USED_BY, ~event, other
            yield ~event, 0
