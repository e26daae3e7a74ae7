"""Which repetition of a layer each event of a run belongs to, once all of them are known."""

from __future__ import annotations

from collections.abc import Sequence

from memcalc.records.trace import Mark, Phase
from memcalc.trace.entries import Entry
from memcalc.trace.folding.tagged import UNTAGGED, unit_of

BY_PARAMETER = (Phase.PREPARE, Phase.RESUME, Phase.STEP, Phase.ZERO_GRAD)
"""Phases that go through parameters: what happens there repeats with the parameter's layer."""
MOST_HELD = 2
"""Repetitions whose storages variables of a loop hold at once: the present and the one before."""


def settled(
    entries: Sequence[Entry],
    events: Sequence[int],
    event_tags: Sequence[int],
    marks: Sequence[Mark],
) -> list[int]:
    """Tags of all events; storages that follow another one take its tag.

    Where parameters are gone through, deaths take theirs from what dies together. A list that
    is dropped frees something of every repetition, and each death belongs to its own.
    Otherwise it is the present repetition that frees: a loop's variable holds what the one
    before has made until it is given something else.
    """
    for entry in entries:
        if entry.source is not None:
            entry.tag = entries[entry.source].tag
    tags = [
        entries[event].tag if event >= 0 else tag
        for event, tag in zip(events, event_tags, strict=True)
    ]
    ends = [mark.index for mark in marks[1:]] + [len(events)]
    for mark, end in zip(marks, ends, strict=True):
        present, begin = UNTAGGED, mark.index
        while mark.phase in BY_PARAMETER and begin < end:
            if events[begin] >= 0:
                present, begin = tags[begin], begin + 1
                continue
            after = next((i for i in range(begin, end) if events[i] >= 0), end)
            own = [entries[~event].tag for event in events[begin:after]]
            list_dropped = len({unit_of(tag) for tag in own if tag != UNTAGGED}) > MOST_HELD
            tags[begin:after] = own if list_dropped else [present] * len(own)
            begin = after
    return tags
