"""From a trace to the answer: the allocator's ladder phase by phase, and what lives at the peak."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, cast

from msgspec.structs import replace

from memcalc.allocator.counter import Levels
from memcalc.allocator.replay import Op, Replay, replay
from memcalc.catalog.gpus import Gpu
from memcalc.estimation import within
from memcalc.estimation.fits import Device, Played, device_of, judge
from memcalc.estimation.outside import outside_span
from memcalc.estimation.question import Asked, asked
from memcalc.estimation.rules_of_thumb import rules_of_thumb
from memcalc.records.model import OptimizerState, Place
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, Peak, PhasePeak, Prediction, Span
from memcalc.records.steady import continued, repeats
from memcalc.records.trace import UNCOUNTED_FLOPS, Aside, Component, Mark, Phase, Trace
from memcalc.records.walk import changes, components, counts, highest, most_of
from memcalc.units import GIB, format_bytes

UNLIMITED = 1 << 50
"""Device size of a replay without a GPU named: large enough for anything."""
UNCOUNTED = (
    "other processes on the GPU",
    "data loaders, metrics and logging of the training script",
)


def predict(question: Asked, trace: Trace, state: OptimizerState) -> Prediction:
    """Replay a trace through the allocator and read the answer off.

    Args:
        question: what was traced, and where it should fit.
        trace: its events.
        state: the optimizer's state by the registry, for its table.
    """
    plan, gpu = question.plan, question.gpu
    played = _played(question, trace)
    replayed = _replayed(question, trace, _room(question), played)
    crowded = _crowded(question, trace, state, replayed, played)
    phases = _phases(crowded or replayed, trace)
    if plan.target == "cpu":
        phases = tuple(map(_requested_only, phases))
    top = max(phases, key=lambda phase: phase.allocated or phase.requested)
    inventory = trace.inventory
    answer = Prediction(
        plan=plan,
        head=inventory.head,
        config=inventory.config,
        task=inventory.task,
        seq=trace.seq,
        parameters=inventory.numel,
        parameter_tensors=len(inventory.parameters),
        trainable=inventory.trainable_numel,
        components=components(trace, highest(trace)[top.phase]),
        phases=phases,
        peak=Peak(
            phase=top.phase,
            requested=top.requested,
            allocated=None,
            reserved=None,
            process_used=None,
        ),
        optimizer_state=state,
        rules_of_thumb=rules_of_thumb(
            plan,
            inventory.numel,
            inventory.trainable_numel,
            question.choice.rule_bytes_per_parameter,
        )
        # The rules are for models; a script may train anything.
        if not plan.command
        else (),
        method="trace",
        gradients=most_of(trace, Component.GRADIENTS),
        flops=trace.flops,
        assumptions=(
            *((within.ALIKE,) if trace.bounds else ()),
            *_of_cache(plan, trace),
            *_of_long_decode(question, trace, played),
            *trace.assumptions,
        ),
        versions=trace.versions,
    )
    if plan.target == "cpu":
        answer = _on_cpu(answer)
    else:
        answer = _on_cuda(answer, top, trace, gpu)
        span = _allocator(question, trace, answer.peak)
        if crowded is not None:
            span = within.given_back(span, answer.peak.reserved or 0, replayed.peaks.reserved)
        answer = replace(answer, allocator=span)
    if trace.flops is None:
        answer = replace(answer, unknown={**answer.unknown, "flops": _uncounted_flops(trace)})
    if plan.target == "cpu":
        return answer
    if gpu is None:
        return answer
    device = device_of(gpu, plan=plan).holding(state)
    if answer.context is not None:
        device = replace(device, context=answer.context)
    return replace(answer, fit=_fit(question, trace, device, replayed.peaks, played))


def _allocator(question: Asked, trace: Trace, peak: Peak) -> Span | None:
    def reserved(other: Trace) -> int:
        found = _replayed(question, other, _room(question), _played(question, other))
        phases = _phases(found, other)
        return max(phase.reserved or 0 for phase in phases)

    return within.reserved_span(trace, peak.reserved or 0, reserved)


def _uncounted_flops(trace: Trace) -> str:
    """Why nobody knows how many floating-point operations a step takes."""
    said = next((note for note in trace.assumptions if note.startswith(UNCOUNTED_FLOPS)), None)
    return said or "a run on symbols does not count them"


def _of_cache(plan: Plan, trace: Trace) -> Iterator[str]:
    """What a token adds to the cache, and when that is more than the weights."""
    made: dict[int, int] = {}
    for storage in trace.storages:
        if storage.component is Component.KV_CACHE and storage.phase is Phase.DECODE:
            made[storage.step] = made.get(storage.step, 0) + storage.bytes
    steps = sorted(made)[-3:-1]
    if plan.generate is None or len(steps) < 2 or steps[1] != steps[0] + 1:
        return
    # A beam search makes its cache once more as it orders its beams.
    copies = 2 if plan.beams > 1 else 1
    each = (made[steps[1]] - made[steps[0]]) // (plan.batch * plan.beams * copies)
    if each <= 0:
        yield "the cache does not grow with the tokens that are generated"
        return
    weights = sum(p.bytes for p in trace.inventory.tensors if not p.buffer)
    sequences = plan.batch * plan.beams
    yield f"a token adds {each:,} bytes to the cache of its sequence"
    yield (
        f"the cache of {sequences} such sequences outgrows the weights ({weights:,} bytes) at "
        f"{-(-weights // (each * sequences)):,} tokens each"
    )


def _of_long_decode(question: Asked, trace: Trace, played: Played | None) -> Iterator[str]:
    """What is not exact of reserved memory where passes were left out of the trace."""
    if played is None or question.plan.target == "cpu":
        return
    yield (
        "segments of small blocks are replayed in passes spread over the decode, so that reserved "
        "may be a few segments of 2 MiB low"
    )
    if question.gpu is None:
        capacity, _ = _large_enough(question, trace, None, played)
        yield f"reserved is that on a GPU of {format_bytes(capacity)} (name yours with --gpu)"
    else:
        device = device_of(question.gpu, plan=question.plan)
        capacity, _ = _large_enough(question, trace, device, played)
        if capacity > device.capacity:
            yield f"reserved is that on a device of {format_bytes(capacity)}, for it does not fit"


ROOMY = 80 << 30
"""Bytes of the device that a long decode is replayed on where no GPU is named."""


def _room(question: Asked) -> Device | None:
    return device_of(question.gpu, plan=question.plan) if question.gpu is not None else None


def _replayed(
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
    return _large_enough(question, trace, device, played)[1]


def _large_enough(
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


def _crowded(
    question: Asked, trace: Trace, state: OptimizerState, unlimited: Replay, played: Played | None
) -> Replay | None:
    """The replay on a GPU that would be full otherwise, where giving cached blocks back helps.

    ``None``: all that the allocator would keep has room, or nothing helps; a long decode was
    replayed on its device already.
    """
    room = _room(question)
    if room is None or played is not None:
        return None
    device = room.holding(state)
    if unlimited.peaks.reserved <= device.room(device.context.high):
        return None
    for context in (device.context.high, device.context.low):
        free = device.room(context)
        if unlimited.peaks.allocated <= free:
            found = replay(tuples(trace), question.settings, device.capacity, available=free)
            if found.out_of_memory is None:
                return found
    return None


def _played(question: Asked, trace: Trace) -> Played | None:
    """Replays a long decode, once for each size of a device; ``None``: it is no long one."""
    if trace.curve is None:
        return None

    from memcalc.estimation.decoding import replay as decoding

    prefix = list(_as_it_ran(decoding.as_prefix(trace)))
    decode = decoding.Decode(trace.curve, prefix, question.settings, question.target)
    return functools.cache(decode.replayed)


def on_device(prediction: Prediction, trace: Trace, device: Device) -> Prediction:
    """The same prediction, judged by a device that need not be the plan's GPU."""
    there = device.holding(prediction.optimizer_state)
    return replace(prediction, fit=judged(asked(prediction.plan), trace, there))


def judged(question: Asked, trace: Trace, device: Device) -> Fit:
    """Whether what was traced fits a device."""
    played = _played(question, trace)
    replayed = _replayed(question, trace, device, played)
    return _fit(question, trace, device, replayed.peaks, played)


def _fit(
    question: Asked, trace: Trace, device: Device, unlimited: Levels, played: Played | None
) -> Fit:
    others = []
    for end in within.ends(trace):
        again = _played(question, end)
        peaks = _replayed(question, end, device, again).peaks
        others.append(_fit_of(question, end, device, peaks, again))
    return within.together(_fit_of(question, trace, device, unlimited, played), others)


def _fit_of(
    question: Asked, trace: Trace, device: Device, unlimited: Levels, played: Played | None
) -> Fit:
    return judge(lambda: tuples(trace), question.settings, device, unlimited, played)


def _requested_only(phase: PhasePeak) -> PhasePeak:
    return replace(phase, allocated=None, reserved=None, first_step_allocated=None)


def _on_cpu(answer: Prediction) -> Prediction:
    """The CPU has no caching allocator: what is requested is all there is to say."""
    reason = "a CPU run has no CUDA allocator"
    return replace(
        answer,
        uncounted=(*answer.plan.unread, "scratch of CPU kernels", "the Python process itself"),
        unknown=dict.fromkeys(("allocated", "reserved", "process_used"), reason),
    )


def _on_cuda(answer: Prediction, top: PhasePeak, trace: Trace, gpu: Gpu | None) -> Prediction:
    """The rungs above requested, as far as they are known."""
    convolves = any(storage.op.startswith("convolution") for storage in trace.storages)
    context = outside_span(gpu, answer.plan, convolves=convolves)
    reserved = max(phase.reserved or 0 for phase in answer.phases)
    return replace(
        answer,
        peak=replace(
            answer.peak,
            allocated=top.allocated,
            reserved=reserved,
            process_used=_process_used(reserved, context, answer.optimizer_state),
        ),
        context=context,
        uncounted=(*trace.uncounted, *answer.plan.unread, *UNCOUNTED),
        unknown={} if gpu is not None else {"process_used": "name a GPU with --gpu"},
    )


def tuples(trace: Trace) -> Iterator[tuple[Any, ...]]:
    """The events of a trace in the form the allocator replays, phases as marks.

    The last step is repeated until there are as many as ``memcalc measure`` takes.
    """
    sizes = [storage.bytes for storage in trace.storages]
    streams = [(storage.stream, storage.used_by) for storage in trace.storages]

    def kind(number: int) -> Any:
        storage = trace.storages[number]
        return storage.bytes, storage.op, storage.module, storage.phase

    if trace.whole:
        return _as_it_ran(trace)
    stream = continued(trace.events, trace.marks, kind, storages=len(sizes), more=repeats(trace))
    events = replayable(stream, sizes, streams if any(map(any, streams)) else None)
    return _told_early(trace, events) if trace.asides else events


def _told_early(trace: Trace, events: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The same with what the allocator was told of before the first step."""
    waiting, index = deque(trace.asides), 0
    for event in events:
        if not isinstance(event[0], Op):
            while waiting and waiting[0].index <= index:
                yield _told(waiting.popleft())
            index += 1
        yield event


def _as_it_ran(trace: Trace) -> Iterator[tuple[Any, ...]]:
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
    if aside.what == "empty_cache":
        return Op.EMPTY_CACHE, None
    return Op.USED_BY, aside.storage, aside.stream


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


def _phases(replayed: Replay, trace: Trace) -> tuple[PhasePeak, ...]:
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


def _process_used(reserved: int, context: Span | None, state: OptimizerState) -> int | None:
    if context is None or context.likely is None:
        return None
    return reserved + context.likely + state.total(Place.MANAGED)
