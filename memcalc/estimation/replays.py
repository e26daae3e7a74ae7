"""A trace replayed on a device: what its phases reach there, and whether it fits."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple, cast

from msgspec.structs import replace

from memcalc.allocator.counter import Levels
from memcalc.allocator.replay import Replay, replay
from memcalc.estimation import within
from memcalc.estimation.fits import Device, Played, device_of, judge
from memcalc.estimation.operations import as_it_ran, tuples
from memcalc.estimation.question import Asked, asked
from memcalc.records.model import OptimizerState
from memcalc.records.prediction import Fit, PhasePeak, Prediction
from memcalc.records.steady import repeats
from memcalc.records.trace import Phase, Trace
from memcalc.records.walk import changes, counts
from memcalc.units import GIB

UNLIMITED = 1 << 50
"""Device size of a replay without a GPU named: large enough for anything."""
ROOMY = 80 << 30
"""Bytes of the device that a long decode is replayed on where no GPU is named."""


def room_of(question: Asked) -> Device | None:
    """The GPU of the question, as a device; ``None``: it names none."""
    return device_of(question.gpu, plan=question.plan) if question.gpu is not None else None


class Run(NamedTuple):
    """A trace, and its replay where nothing is in the way."""

    trace: Trace
    played: Played | None
    """Replays it on devices of other sizes, where it is a long decode."""
    replayed: Replay


def run_of(question: Asked, trace: Trace, device: Device | None) -> Run:
    """A trace's run on a device."""
    played = long_decode_of(question, trace)
    return Run(trace, played, replay_of(question, trace, device, played))


def variants_of(question: Asked, trace: Trace, device: Device | None) -> list[Run]:
    """The runs of the trace as it may be, where workspaces are known within limits."""
    return [run_of(question, variant, device) for variant in within.variants(trace)]


def replay_of(
    question: Asked, trace: Trace, device: Device | None, played: Played | None
) -> Replay:
    """The replay on a device without a limit; of a long decode on one that is large enough.

    A cache that grows leaves blocks behind that are too small for it, and nothing but a device that
    is full makes the allocator give them back: of a long decode it is the replay that decides
    whether it fits, with the largest context. Where it does not, the answer is that of the first
    device of 2, 4, 8 times the size on which it does.
    """
    if played is None:
        return replay(tuples(trace), question.settings, UNLIMITED)
    return large_enough(question, trace, device, played)[1]


def large_enough(
    question: Asked, trace: Trace, device: Device | None, played: Played
) -> tuple[int, Replay]:
    """The size of device that a long decode fits, and its replay there."""
    capacity = room = ROOMY
    if device is not None:
        capacity, room = device.capacity, device.room(device.context.high)
    sizes = [storage.bytes for storage in trace.storages]
    needed = max(accumulate(changes(trace.events, sizes)), default=0)
    while True:
        # With next to nothing allowed to be reserved, no device is large enough.
        last = capacity >= UNLIMITED
        if last or needed <= min(room, int(question.settings.memory_fraction * capacity)):
            found = played(capacity, room)
            if last or found.out_of_memory is None:
                return capacity, found
        capacity = room = 2 * max(capacity, GIB)


def replay_when_crowded(
    question: Asked, trace: Trace, state: OptimizerState, unlimited: Replay, played: Played | None
) -> Replay | None:
    """The replay on a GPU that would be full otherwise, where giving cached blocks back helps.

    ``None``: all that the allocator would keep has room, or nothing helps; a long decode was
    replayed on its device already.
    """
    room = room_of(question)
    if room is None or played is not None:
        return None
    device = room.holding(state, trace.inventory)
    if unlimited.peaks.reserved <= device.room(device.context.high):
        return None
    for context in (device.context.high, device.context.low):
        free = device.room(context)
        if unlimited.peaks.allocated <= free:
            found = replay(tuples(trace), question.settings, device.capacity, available=free)
            if found.out_of_memory is None:
                return found
    return None


def long_decode_of(question: Asked, trace: Trace) -> Played | None:
    """Replays a long decode, once for each size of a device; ``None``: it is no long one."""
    if trace.curve is None:
        return None

    from memcalc.estimation.decoding import replay as decoding

    prefix = list(as_it_ran(decoding.as_prefix(trace)))
    decode = decoding.Decode(trace.curve, prefix, question.settings, question.target)
    return functools.cache(decode.replayed)


def on_device(prediction: Prediction, trace: Trace, device: Device) -> Prediction:
    """The same prediction, judged by a device that need not be the plan's GPU."""
    there = device.holding(prediction.optimizer_state, trace.inventory)
    return replace(prediction, fit=judged(asked(prediction.plan), trace, there))


def judged(question: Asked, trace: Trace, device: Device) -> Fit:
    """Whether what was traced fits a device."""
    return fit_there(
        question,
        run_of(question, trace, device),
        variants_of(question, trace, device),
        device,
    )


def fit_there(question: Asked, likely: Run, variants: Iterable[Run], device: Device) -> Fit:
    """Whether it fits, with whatever is known of it within limits only.

    Args:
        question: what was traced.
        likely: the run as it was traced.
        variants: as it may be.
        device: where it runs.
    """

    def fit(run: Run) -> Fit:
        peaks = run.replayed.peaks
        return judge(lambda: tuples(run.trace), question.settings, device, peaks, run.played)

    return within.together(fit(likely), [fit(variant) for variant in variants])


def phases_of(replayed: Replay, trace: Trace) -> tuple[PhasePeak, ...]:
    """Peaks of the parts that count, rung by rung; beside them the first step's."""
    first: dict[Phase, list[Levels]] = {}
    steady: dict[Phase, list[Levels]] = {}
    for interval in replayed.intervals:
        step, phase = cast(tuple[int, Phase], interval.name)
        for group, inside in (
            (first, step == 0),
            (steady, counts(trace, phase, step, repeats(trace))),
        ):
            if inside:
                group.setdefault(phase, []).append(interval.peaks)
    return tuple(
        PhasePeak(
            phase=phase,
            requested=max(peaks.requested for peaks in steady[phase]),
            allocated=max(peaks.allocated for peaks in steady[phase]),
            reserved=max(peaks.reserved for peaks in steady[phase]),
            first_step_allocated=max(peaks.allocated for peaks in first[phase])
            if phase in first
            else None,
        )
        for phase in Phase
        if phase in steady
    )
