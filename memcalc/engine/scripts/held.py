"""What a program itself holds: blocks that outlive backward, and the variables that hold them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch

from memcalc.engine import source_lines
from memcalc.engine.history import Timeline
from memcalc.engine.notes import Interval, Notebook
from memcalc.records.trace import Component, Phase

_DEEP = 4
"""Lists inside lists that are looked into."""


def variables(namespaces: Iterable[Mapping[str, Any]], book: Notebook) -> dict[int, str]:
    """Names of variables, by the addresses of the blocks that they hold; the innermost first."""
    found: dict[int, str] = {}
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            for tensor in _tensors(value, _DEEP):
                for address in book.addresses(tensor):
                    found.setdefault(address, name)
    return found


def namespaces(trace: TracebackType | None) -> Iterator[Mapping[str, Any]]:
    """The variables of the user's frames in a traceback, the innermost first."""
    frames = []
    while trace is not None:
        if source_lines.is_users(trace.tb_frame.f_code.co_filename):
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        yield frame.f_locals
        yield frame.f_globals


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict | list | tuple):
        for one in list(value.values() if isinstance(value, dict) else value):
            yield from _tensors(one, depth - 1)
    elif depth and source_lines.is_users(_file_of(type(value))):
        yield from _tensors(getattr(value, "__dict__", None), depth - 1)


def _file_of(kind: type) -> str:
    """Where a class is defined, as far as one of its functions says."""
    codes = (getattr(one, "__code__", None) for one in vars(kind).values())
    return next((code.co_filename for code in codes if code is not None), "<unknown>")


def name(timeline: Timeline, intervals: list[Interval]) -> None:
    """What outlives the backward of its own step and another is held by nobody but the program."""
    ends = [
        one.end
        for one, after in itertools.pairwise(intervals)
        if (one.phase, after.phase) == (Phase.BACKWARD, Phase.FORWARD)
    ]
    begins = [one.begin for one in intervals]

    def outlives(block: Any) -> bool:
        if not ends:
            return block.component is None and bool(block.op)
        survived = bisect.bisect_left(ends, block.dies) - bisect.bisect_left(ends, block.born)
        return survived > 1

    guessed = [
        block
        for block in timeline.blocks
        if block.component in (None, Component.ACTIVATIONS)
        or (block.component is Component.INPUTS and not block.given)
    ]
    free = [
        block
        for block in guessed
        # Backward frees what autograd saved for it.
        if intervals[max(bisect.bisect_right(begins, block.dies) - 1, 0)].phase
        is not Phase.BACKWARD
        or block.dies > intervals[-1].end
    ]
    alike = {(block.line, block.size) for block in free if block.line and outlives(block)}
    holders = {(block.line, block.size): block.op for block in free if block.op}
    for block in free:
        what = block.line, block.size
        block.op = holders.get(what, block.op)
        if outlives(block) or what in alike:
            block.component = Component.HELD
