"""Makes a prediction from a trace: peaks by phase, and components at the peak."""

from collections.abc import Iterator

from msgspec.structs import replace

from memcalc.errors import EstimateError
from memcalc.estimation.base_prediction import build_prediction, highest
from memcalc.estimation.fits import judge, outside_span
from memcalc.estimation.question import ResolvedPlan
from memcalc.estimation.replays import (
    Replays,
    find_device,
    outcome,
    read_replay,
    replay_full_gpu,
    requested_phases,
    roomy_card,
)
from memcalc.records.model import OptimizerState
from memcalc.records.plan import Plan
from memcalc.records.prediction import PhasePeak, Prediction, Span
from memcalc.records.trace import UNCOUNTED_FLOPS, Component, Phase, Trace, components, find_peak
from memcalc.records.trace import highest as highest_events

_CONVOLVES = ("convolution", "_convolution", "cudnn_convolution")
"""Prefixes of the names of PyTorch's convolutions."""
_NOT_COUNTED = "memcalc explain counts them, and so does memcalc suggest"
_NO_ALLOCATOR = "a CPU run has no CUDA allocator"
UNCOUNTED = (
    "other processes on the GPU",
    "data loaders, metrics and logging of the training script",
)


def predict(question: ResolvedPlan, run: Replays, state: OptimizerState) -> Prediction:
    """Make a prediction from a traced run, replaying it if the plan's GPU is too small."""
    trace = run.trace
    notes = tuple(_note_kv_cache(question.plan, trace))
    if question.plan.target == "cpu":
        answer = _make_prediction(question, trace, state, requested_phases(trace), notes)
        # The CPU has no caching allocator: only requested bytes are known.
        missed = "CPU kernel scratch space", "the Python process itself"
        unknown = dict.fromkeys(("allocated", "reserved", "process_used"), _NO_ALLOCATOR)
        return replace(
            answer,
            uncounted=(*answer.plan.unread, *missed),
            unknown={**unknown, **answer.unknown},
        )
    reached = outcome(trace)
    crowded, unplayed = None, ""
    try:
        crowded = replay_full_gpu(question, run, reached.peaks)
    except EstimateError as error:
        unplayed = str(error)
    phases = (crowded or reached).phases
    answer = _make_prediction(question, trace, state, phases, notes)
    answer = _add_gpu_rungs(question, answer, trace)
    if crowded is not None:
        span = freed_cache_span(answer.peak.reserved or 0, reached.peaks.reserved)
        answer = replace(answer, allocator=span)
    device = find_device(question)
    if device is None:
        return answer
    if answer.context is not None:
        device = replace(device, context=answer.context)
    try:
        fit = judge(run.on, question.settings, device, reached.peaks)
    except EstimateError as error:
        unplayed = str(error)
    if unplayed:
        return replace(answer, unknown={**answer.unknown, "fit": unplayed})
    return replace(answer, fit=fit)


def _make_prediction(
    question: ResolvedPlan,
    trace: Trace,
    state: OptimizerState,
    phases: tuple[PhasePeak, ...],
    notes: tuple[str, ...],
) -> Prediction:
    """Return a prediction of requested bytes, with the components at the peak."""
    held = components(trace, highest_events(trace)[highest(phases).phase])
    why = next((note for note in trace.assumptions if note.startswith(UNCOUNTED_FLOPS)), None)
    return replace(
        build_prediction(question, trace.inventory, state, phases, held, "trace"),
        seq=trace.seq,
        gradients=find_peak(trace, Component.GRADIENTS),
        flops=trace.flops,
        sent=trace.sent,
        unknown={"flops": why or _NOT_COUNTED} if trace.flops is None else {},
        assumptions=(*notes, *trace.assumptions),
        versions=trace.versions,
    )


def _add_gpu_rungs(question: ResolvedPlan, answer: Prediction, trace: Trace) -> Prediction:
    """Add allocated, reserved and process memory of a GPU to a prediction."""
    convolves = any(storage.op.startswith(_CONVOLVES) for storage in trace.storages)
    context = outside_span(question.gpu, question, convolves=convolves, groups=trace.groups)
    reserved = max(phase.reserved or 0 for phase in answer.phases)
    used = None
    if context.likely is not None:
        used = reserved + context.likely
    return replace(
        answer,
        peak=replace(
            answer.peak,
            allocated=highest(answer.phases).allocated,
            reserved=reserved,
            process_used=used,
        ),
        context=context,
        uncounted=(*trace.uncounted, *answer.plan.unread, *UNCOUNTED),
        unknown=answer.unknown
        if question.gpu is not None
        else {"process_used": "name a GPU with --gpu", **answer.unknown},
    )


GIVEN_BACK = "cached blocks that the allocator frees as the GPU fills up"


def freed_cache_span(reserved: int, unlimited: int) -> Span:
    """Return the range between reserved bytes at this GPU's size and without a limit.

    The difference is cached blocks that the allocator frees when the GPU is full.
    """
    low, high = min(reserved, unlimited), max(reserved, unlimited)
    source = "replayed at the GPU's size and without a limit; the larger is that of a larger GPU"
    part = Span(name=GIVEN_BACK, low=low, likely=reserved, high=high, source=source)
    return Span(low=low, likely=reserved, high=high, source=GIVEN_BACK, parts=(part,))


def _note_kv_cache(plan: Plan, trace: Trace) -> Iterator[str]:
    """Yield notes: the KV cache's bytes per token, and when it exceeds the weights."""
    if plan.gathers:
        yield from _note_quantized_cache(plan, trace)
        return
    by_stream: dict[int, dict[int, int]] = {}
    for storage in trace.storages:
        if storage.component is Component.KV_CACHE and storage.phase is Phase.DECODE:
            made = by_stream.setdefault(storage.stream, {})
            made[storage.step] = made.get(storage.step, 0) + storage.bytes
    offloaded = plan.cache.startswith("offloaded") and bool(by_stream)
    # Offloaded layers are copied back on another stream, the only allocations of a static cache.
    made = max(by_stream.values(), key=lambda sizes: sum(sizes.values()), default={})
    steps = sorted(made)[-3:-1]
    if plan.generate is None or len(steps) < 2 or steps[1] != steps[0] + 1:
        return
    # A beam search copies its cache when it reorders its beams.
    copies = 2 if plan.beams > 1 else 1
    each = (made[steps[1]] - made[steps[0]]) // (plan.batch * plan.beams * copies)
    if each <= 0:
        yield "generated tokens do not grow the KV cache"
        return
    weights = sum(p.bytes for p in trace.inventory.tensors if not p.buffer)
    sequences = plan.batch * plan.beams
    yield f"each token adds {each:,} bytes to its sequence's KV cache"
    if offloaded:
        return
    yield (
        f"the KV cache of {sequences} {'sequence' if sequences == 1 else 'sequences'} exceeds the "
        f"weights beyond {-(-weights // (each * sequences)):,} tokens each"
    )


def _note_quantized_cache(plan: Plan, trace: Trace) -> Iterator[str]:
    """Yield a note: bytes per token of a KV cache that quantizes many tokens at once."""
    held = sum(
        storage.bytes
        for storage in trace.storages
        if storage.component is Component.KV_CACHE and storage.phase is Phase.PREFILL
    )
    each = held // (plan.batch * plan.beams * (trace.seq or 1))
    yield f"each token takes {each:,} bytes of its sequence's KV cache once quantized"


def predict_by_replay(question: ResolvedPlan, run: Replays, known: Prediction) -> Prediction:
    """Predict a plan by replaying another plan's run under its allocator settings or GPU.

    ``known``: the answer of that run.

    Raises:
        MemcalcError: it cannot be replayed.
    """
    trace = run.trace
    if question.plan.alloc_conf != known.plan.alloc_conf:
        (found,) = run.on([roomy_card(question)])
        trace = read_replay(found, trace)
    return predict(question, Replays(trace, run.play), known.optimizer_state)
