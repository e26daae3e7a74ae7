"""From a trace to the answer: the allocator's ladder phase by phase, and what lives at the peak."""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.catalog.gpus import Gpu
from memcalc.estimation import cache_notes, within
from memcalc.estimation.fits import Device, device_of
from memcalc.estimation.outside import outside_span
from memcalc.estimation.question import Asked
from memcalc.estimation.replays import (
    UNLIMITED,
    Outcome,
    judged,
    outcome,
    room_of,
    when_crowded,
)
from memcalc.estimation.rules_of_thumb import rules_of_thumb
from memcalc.records.model import OptimizerState, Place
from memcalc.records.prediction import Peak, PhasePeak, Prediction, Span
from memcalc.records.trace import UNCOUNTED_FLOPS, Component, Phase, Trace
from memcalc.records.walk import components, highest, most_of
from memcalc.version import OLDEST_TORCH

_TOLD = 0.01
"""Share of what is allocated that its range is wide at least: a narrower one would be surer of all
else than published readings are (docs/accuracy.md)."""
_CONVOLVES = ("convolution", "_convolution", "cudnn_convolution")
"""How the names of PyTorch's convolutions begin."""
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
    reached = outcome(question, trace)
    crowded = when_crowded(question, trace, state, reached.peaks)
    phases = (crowded or reached).phases
    said = tuple(cache_notes.said(question, trace))
    if question.plan.target == "cpu":
        return _on_cpu(_described(question, trace, state, (*map(_requested_only, phases),), said))
    answer = _on_cuda(_described(question, trace, state, phases, said), trace, question.gpu)
    variants = [outcome(question, variant) for variant in within.variants(trace)]
    device = device_of(question.gpu, plan=question.plan).holding(state, trace.inventory)
    reserved = answer.peak.reserved or 0
    span = _of_convolutions(question, trace, reserved, variants)
    if crowded is not None:
        span = within.given_back(span, reserved, reached.peaks.reserved)
    answer = replace(
        answer,
        allocated=_as_other_code(_in_use(answer, trace, variants), answer.peak.allocated, device),
        allocator=_as_other_code(span, reserved, device),
    )
    if question.gpu is None:
        return answer
    if answer.context is not None:
        device = replace(device, context=answer.context)
    return replace(answer, fit=judged(question, trace, device))


def _described(
    question: Asked,
    trace: Trace,
    state: OptimizerState,
    phases: tuple[PhasePeak, ...],
    said: tuple[str, ...],
) -> Prediction:
    """What is known of a run wherever it is: what tensors ask for, and what is held at the peak."""
    plan, inventory = question.plan, trace.inventory
    top = _highest(phases)
    return Prediction(
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
        # The rules are for models; a script may train anything.
        rules_of_thumb=()
        if plan.command
        else rules_of_thumb(
            plan,
            inventory.numel,
            inventory.trainable_numel,
            question.choice.rule_bytes_per_parameter,
        ),
        method="trace",
        gradients=most_of(trace, Component.GRADIENTS),
        flops=trace.flops,
        sent=trace.sent,
        unknown={"flops": _uncounted_flops(trace)} if trace.flops is None else {},
        assumptions=(*((within.ALIKE,) if trace.bounds else ()), *said, *trace.assumptions),
        versions=trace.versions,
    )


def _highest(phases: tuple[PhasePeak, ...]) -> PhasePeak:
    return max(phases, key=lambda phase: phase.allocated or phase.requested)


def _of_convolutions(
    question: Asked, trace: Trace, reserved: int, variants: list[Outcome]
) -> Span | None:
    """Between what the reserved memory lies for workspaces that are known within limits."""
    span = within.span_of(within.RESERVED, trace, reserved, [*map(_reserved, variants)])
    release, room = question.target.torch, room_of(question)
    if span is None or release >= OLDEST_TORCH:
        return span
    return within.of_other_order(
        span,
        reserved,
        allocated=min(map(_allocated, variants)),
        largest=max(one.bytes for one in trace.storages if one.phase is not Phase.LOAD),
        room=room.room(room.context.low) if room is not None else UNLIMITED,
        release=".".join(map(str, release)),
    )


def _in_use(answer: Prediction, trace: Trace, variants: list[Outcome]) -> Span | None:
    """The same of what is allocated; ``None`` too where workspaces have next to no part in it."""
    likely, found = answer.peak.allocated or 0, [*map(_allocated, variants)]
    span = within.span_of(within.ALLOCATED, trace, likely, found)
    return None if span is None or span.high - span.low < _TOLD * likely else span


def _as_other_code(span: Span | None, figure: int | None, device: Device) -> Span | None:
    """The span where another release's code will run than was traced."""
    if device.other_code is None or figure is None:
        return span
    ends, source = device.apart(figure), device.other_code.source
    return within.of_other_code(span, figure, ends, source)


def _reserved(reached: Outcome) -> int:
    return max(phase.reserved or 0 for phase in reached.phases)


def _allocated(reached: Outcome) -> int:
    return max(phase.allocated or 0 for phase in reached.phases)


def _uncounted_flops(trace: Trace) -> str:
    """Why nobody knows how many floating-point operations a step takes."""
    said = next((note for note in trace.assumptions if note.startswith(UNCOUNTED_FLOPS)), None)
    return said or "memcalc explain counts them, and so does memcalc suggest"


def _requested_only(phase: PhasePeak) -> PhasePeak:
    return replace(phase, allocated=None, reserved=None, first_step_allocated=None)


def _on_cpu(answer: Prediction) -> Prediction:
    """The CPU has no caching allocator: what is requested is all there is to say."""
    reason = "a CPU run has no CUDA allocator"
    return replace(
        answer,
        uncounted=(*answer.plan.unread, "scratch of CPU kernels", "the Python process itself"),
        unknown={
            **dict.fromkeys(("allocated", "reserved", "process_used"), reason),
            **answer.unknown,
        },
    )


def _on_cuda(answer: Prediction, trace: Trace, gpu: Gpu | None) -> Prediction:
    """The rungs above requested, as far as they are known."""
    convolves = any(storage.op.startswith(_CONVOLVES) for storage in trace.storages)
    context = outside_span(gpu, answer.plan, convolves=convolves, groups=trace.groups)
    reserved = max(phase.reserved or 0 for phase in answer.phases)
    return replace(
        answer,
        peak=replace(
            answer.peak,
            allocated=_highest(answer.phases).allocated,
            reserved=reserved,
            process_used=_process_used(reserved, context, answer.optimizer_state),
        ),
        context=context,
        uncounted=(*trace.uncounted, *answer.plan.unread, *UNCOUNTED),
        unknown=answer.unknown
        if gpu is not None
        else {"process_used": "name a GPU with --gpu", **answer.unknown},
    )


def _process_used(reserved: int, context: Span | None, state: OptimizerState) -> int | None:
    if context is None or context.likely is None:
        return None
    return reserved + context.likely + state.total(Place.MANAGED)
