"""The answer of a serving engine that was started: its own figures, and what the stub leaves out.

The stub driver charges nothing for kernels that CUDA loads as they are first called, for NCCL's
buffers, and for what the driver keeps of a CUDA graph: those are taken off as ranges.
"""

from collections.abc import Iterator

from memcalc.catalog.gpus import Gpu
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.fits import CODE, NCCL, outside_span
from memcalc.estimation.serving.rules import judge_fit
from memcalc.estimation.serving.vllm_rules import GRAPHS_HIGH
from memcalc.records.engines import EngineFigures, Started, WorkerFigures
from memcalc.records.model import OptimizerState
from memcalc.records.plan import Plan
from memcalc.records.prediction import Peak, PhasePeak, Prediction
from memcalc.records.serving import Capacity, Serving, Taken
from memcalc.records.trace import Component, Phase
from memcalc.units import format_bytes

METHOD = "engine"
"""Method of an answer that the engine itself gave."""
_SOURCE = "vLLM"
_REFUSALS = ("ValueError", "ValidationError", "NotImplementedError", "OutOfMemoryError")
"""Errors with which vLLM refuses settings, models and GPUs; with all others it cannot run here."""


def convert_figures(plan: Plan, gpu: Gpu, found: Started) -> Prediction:
    """Make a prediction from the figures that a started vLLM reported.

    Raises:
        UsageError: the engine refused to start; in its own words.
        EstimateError: this release of the engine does not say what is needed.
    """
    engine, worker = _require_figures(found, gpu)
    serving = _make_serving(engine, worker, gpu)
    kept = (worker.consumed or 0) - (worker.weights or 0)
    components = {
        Component.WEIGHTS: worker.weights or 0,
        Component.KV_CACHE: serving.least.bytes,
        Component.TEMPORARIES: worker.activations or 0,
        Component.WORKSPACES: max(kept, 0),
    }
    requested = sum(components.values())
    reason = "vLLM reserves its share of the GPU as it starts"
    return Prediction(
        plan=plan,
        head=engine.architecture,
        task="",
        seq=serving.length,
        parameters=worker.parameters or 0,
        parameter_tensors=worker.tensors or 0,
        trainable=0,
        components=components,
        phases=(PhasePeak(phase=Phase.PREFILL, requested=requested),),
        peak=Peak(phase=Phase.PREFILL, requested=requested),
        optimizer_state=OptimizerState(optimizer="", implementation="", tensors=()),
        rules_of_thumb=(),
        method=METHOD,
        fit=judge_fit(serving, gpu),
        serving=serving,
        assumptions=tuple(_describe_start(engine, worker)),
        uncounted=(
            *(("workspaces of FlashInfer's all-reduce",) if engine.world > 1 else ()),
            "other processes on the GPU",
        ),
        unknown=dict.fromkeys(("allocated", "reserved", "process_used", "flops"), reason),
        versions={"vllm": engine.version},
    )


def _require_figures(found: Started, gpu: Gpu) -> tuple[EngineFigures, WorkerFigures]:
    """Return the engine's and its fullest worker's figures; raise an error without any."""
    if found.refused is not None:
        until = "; ".join(_list_sizes(found))
        if found.refused.kind not in _REFUSALS:
            raise EstimateError(
                f"vLLM could not run on the simulated {gpu.name}. It says: "
                f"{found.refused.kind}: {found.refused.text.strip()}"
            )
        raise UsageError(
            f"vLLM does not start on {gpu.name}. It says: {found.refused.text.strip()}"
            + (f" (until then: {until})" if until else "")
        )
    engine = found.engine
    workers = [one for one in found.workers if one.available is not None]
    if engine is not None and not workers and engine.cache is None:
        raise EstimateError(
            f"vLLM {engine.version} started. This model keeps no KV cache, so vLLM profiles and "
            "reserves nothing: type memcalc estimate MODEL --inference for a forward pass."
        )
    if engine is None or not workers:
        raise EstimateError("vLLM started, and this release does not say how it divided memory.")
    lacking = [
        name for name in ("blocks", "cache", "longest", "concurrency") if not getattr(engine, name)
    ]
    if lacking:
        raise EstimateError(
            f"vLLM {engine.version} started without a KV cache, or does not say its "
            f"{' and '.join(lacking)}."
        )
    if engine.length is not None and engine.length > (engine.longest or 0):
        raise UsageError(
            f"vLLM takes sequences of {engine.longest:,} tokens here, but --seq and --generate ask "
            f"for {engine.length:,}: ask for fewer, or raise --engine-arg max_model_len."
        )
    return engine, min(workers, key=lambda one: one.available or 0)


def _list_sizes(found: Started) -> Iterator[str]:
    """Yield the sizes that the first worker reported before vLLM refused."""
    for one in found.workers[:1]:
        for name in ("requested", "weights", "activations", "available"):
            size = getattr(one, name)
            if size is not None:
                yield f"{_NAMES[name]} {format_bytes(size)}"


_NAMES = {
    "requested": "share of the GPU",
    "weights": "weights",
    "activations": "activations",
    "available": "left for the KV cache",
}


def _make_serving(engine: EngineFigures, worker: WorkerFigures, gpu: Gpu) -> Serving:
    """Return what a started vLLM reserved, and how many sequences fit."""
    outside = tuple(_list_extra_items(engine, worker, gpu))
    assert engine.blocks
    assert engine.cache
    assert engine.longest
    assert worker.available is not None
    length = engine.length or engine.longest
    at_once = engine.concurrency_at_length if engine.length else engine.concurrency
    least, most = (
        _reduce_capacity(engine, worker.available, charged, at_once or 0.0)
        for charged in (sum(one.high for one in outside), sum(one.low for one in outside))
    )
    return Serving(
        engine="vllm",
        version=engine.version,
        ran=True,
        share=engine.share or 0.0,
        setting="gpu_memory_utilization",
        memory=gpu.memory,
        budget=worker.requested or worker.available,
        taken=(*_list_items(worker), *outside),
        gpus=engine.world,
        kinds=(),
        block=engine.block or 1,
        block_bytes=engine.cache // engine.blocks,
        length=length,
        batched_tokens=engine.batched_tokens or 0,
        activations=worker.activations or 0,
        least=least,
        most=most,
    )


def _list_items(worker: WorkerFigures) -> Iterator[Taken]:
    """Yield the items that vLLM itself subtracts from its share of the GPU."""
    kept = None
    if worker.consumed is not None and worker.weights is not None:
        kept = max(worker.consumed - worker.weights, 0)
    captured = f", {format_bytes(worker.captured)} when captured" if worker.captured else ""
    rows = (
        ("weights", worker.weights, _SOURCE),
        ("activations", worker.activations, f"{_SOURCE}: peak of the profiled pass"),
        ("kept beside weights", kept, f"{_SOURCE}: buffers of runner and sampler"),
        ("CUDA graphs", worker.graphs or None, f"{_SOURCE}'s estimate{captured}"),
    )
    for name, size, source in rows:
        if size is not None:
            yield Taken(name=name, low=size, high=size, source=source)


def _list_extra_items(engine: EngineFigures, worker: WorkerFigures, gpu: Gpu) -> Iterator[Taken]:
    """Yield the memory of a real GPU that the stub driver does not count."""
    if worker.activations is None:
        return  # The size of the KV cache was given, so nothing is taken off it.
    groups = (engine.world,) if engine.world > 1 else ()
    for part in outside_span(gpu, groups=groups).parts:
        if part.name == CODE:
            yield Taken(name="kernels, libraries", low=part.low, high=part.high, source=part.source)
        elif part.name == NCCL:
            # vLLM starts to measure after a first message, so most of it is there already.
            yield Taken(name=NCCL, low=0, high=part.high, source=part.source)
    if worker.graphs:
        most = max(GRAPHS_HIGH - worker.graphs, 0)
        source = f"logs say up to {format_bytes(GRAPHS_HIGH)} of graphs in all"
        yield Taken(name="driver's part of graphs", low=0, high=most, source=source)


def _reduce_capacity(
    engine: EngineFigures, available: int, charged: int, at_once: float
) -> Capacity:
    """Return the KV cache's capacity less ``charged`` bytes, in proportion to its blocks."""
    assert engine.blocks
    assert engine.cache
    assert engine.longest
    assert engine.concurrency
    size = max(available - charged, 0)
    blocks = min(engine.blocks, size * engine.blocks // engine.cache)
    part = blocks / engine.blocks
    tokens = engine.tokens or int(engine.concurrency * engine.longest)
    return Capacity(
        bytes=size,
        blocks=blocks,
        tokens=int(tokens * part),
        sequences=int(at_once * part),
        limit=engine.sequences or int(at_once),
        longest=min(engine.longest, int(engine.concurrency * part * engine.longest)),
    )


def _describe_start(engine: EngineFigures, worker: WorkerFigures) -> Iterator[str]:
    yield (
        f"vLLM {engine.version} itself started on the simulated GPU, with dummy weights; figures "
        "are its own"
    )
    yield (
        f"it batches {engine.batched_tokens or 0:,} tokens of up to {engine.sequences or 0:,} "
        "sequences"
    )
    if worker.activations is None:
        yield "the size of the KV cache was given, so vLLM profiled nothing"
    for name in engine.bundled:
        yield f"the hub does not give {name}: its config is the one that memcalc ships"
    if engine.replicas > 1:
        yield f"figures are for each of {engine.replicas} copies of the model"
    if engine.quantization:
        yield f"weights in {engine.quantization}"
