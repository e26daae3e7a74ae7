"""Levels that a run reached on its device, and would reach on others.

The run's own figures are PyTorch's counters. For a smaller card, or other settings of the
allocator, the allocator model replays the run's history.
"""

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from memcalc.allocator.levels import Levels
from memcalc.allocator.replay import Op, Replay, replay
from memcalc.estimation.fits import Device, device_of, judge
from memcalc.estimation.question import Asked, asked
from memcalc.records.prediction import ALLOCATOR_RUNGS, Fit, PhasePeak, Prediction
from memcalc.records.trace import Phase, Reading, Trace, counts

UNLIMITED = 1 << 50
"""Device size without a GPU named: large enough for anything."""


def room_of(question: Asked) -> Device | None:
    """The GPU of the question, as a device; ``None``: it names none."""
    return device_of(question.gpu, plan=question.plan) if question.gpu is not None else None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run reached: its highest levels, and those of each phase that counts."""

    peaks: Levels
    phases: tuple[PhasePeak, ...]


def outcome(question: Asked, trace: Trace) -> Outcome:
    """What a run reached where nothing was in its way."""
    if not trace.readings:
        return of_replay(replay(as_it_ran(trace), question.settings, UNLIMITED), trace)
    highest = {r: max(getattr(one, r) for one in trace.readings) for r in ALLOCATOR_RUNGS}
    peaks = Levels(active=highest["allocated"], **highest)
    return Outcome(peaks=peaks, phases=_phases(trace.readings, trace))


def of_replay(replayed: Replay, trace: Trace) -> Outcome:
    """The same by the allocator model."""
    readings = []
    for interval in replayed.intervals:
        step, phase = cast(tuple[int, Phase], interval.name)
        levels = {rung: getattr(interval.peaks, rung) for rung in ALLOCATOR_RUNGS}
        readings.append(Reading(phase=phase, step=step, **levels))
    return Outcome(peaks=replayed.peaks, phases=_phases(readings, trace))


def _phases(readings: Sequence[Reading], trace: Trace) -> tuple[PhasePeak, ...]:
    """Peaks of the phases that count, rung by rung; beside them the first step's."""
    found = []
    for phase in Phase:
        of_phase = [reading for reading in readings if reading.phase is phase]
        steady = [one for one in of_phase if counts(trace, phase, one.step)]
        first = [one.allocated for one in of_phase if one.step == 0]
        if steady:
            peaks = {r: max(getattr(one, r) for one in steady) for r in ALLOCATOR_RUNGS}
            early = max(first, default=None)
            found.append(PhasePeak(phase=phase, first_step_allocated=early, **peaks))
    return tuple(found)


def when_crowded(question: Asked, trace: Trace, unlimited: Levels) -> Outcome | None:
    """The run on a GPU that would be full otherwise, where giving cached blocks back helps.

    ``None``: all that the allocator would keep has room, or nothing helps.
    """
    device = room_of(question)
    if device is None:
        return None
    if unlimited.reserved <= device.room(device.context.high):
        return None
    for context in (device.context.high, device.context.low):
        free = device.room(context)
        if unlimited.allocated <= free:
            found = replay(as_it_ran(trace), question.settings, device.capacity, available=free)
            if found.out_of_memory is None:
                return of_replay(found, trace)
    return None


def on_device(prediction: Prediction, trace: Trace, device: Device) -> Prediction:
    """The same prediction, judged by a device that need not be the plan's GPU."""
    return replace(prediction, fit=judged(asked(prediction.plan), trace, device))


def judged(question: Asked, trace: Trace, device: Device) -> Fit:
    """Whether a run fits a device."""
    events = functools.partial(as_it_ran, trace)
    return judge(events, question.settings, device, outcome(question, trace).peaks)


def as_it_ran(trace: Trace) -> Iterator[tuple[Any, ...]]:
    """Every event once, with what else the allocator was told of."""
    marks = [(mark.index, (Op.MARK, (mark.step, mark.phase))) for mark in trace.marks]
    told = [
        (
            aside.index,
            (Op.USED_BY, aside.storage, aside.stream)
            if aside.what == "used_by"
            else (Op(aside.what), aside.stream),
        )
        for aside in trace.asides
    ]
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
