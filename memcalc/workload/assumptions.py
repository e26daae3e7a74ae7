"""The assumptions of an answer, by its plan."""

from __future__ import annotations

from collections.abc import Iterator

from memcalc.records.plan import Plan
from memcalc.registry import Choice
from memcalc.workload import layouts, quantised
from memcalc.workload.loops import Loop


def said(plan: Plan, choice: Choice, loop: Loop, *, cached: bool) -> Iterator[str]:
    """Sentences on what a run is assumed to do.

    Args:
        plan: what is run.
        choice: the optimizer.
        loop: who drives it.
        cached: the model returns its keys and values.
    """
    if plan.infers:
        yield from _said_of_inference(plan)
        return
    if plan.loop == "trainer" and plan.precision in ("fp16", "bf16"):
        other = " (or bf16+amp for a model loaded in bf16)" if plan.precision == "bf16" else ""
        yield (
            f"weights in {plan.precision} without autocast; the Trainer's {plan.precision}=True is "
            f"--precision amp-{plan.precision}{other}"
        )
    if loop.keep_outputs(plan):
        held = "`outputs` and its KV cache" if cached else "`outputs`"
        yield f"your loop holds {held} in the next forward (else --no-keep-outputs)"
    if layouts.of(plan).package == "deepspeed":
        yield "DeepSpeed allocates its flat buffers on the GPU, as it does where there is room"
    if plan.optim_in_backward or choice.row.in_backward:
        yield "each parameter is updated inside backward, and its gradient freed at once"
    yield from _said_of_base(plan)
    if plan.liger:
        yield "Liger replaces its default kernels, including the loss and its logits"
    if plan.resume:
        yield "the checkpoint is read into host memory first, as transformers' Trainer does"
    if plan.eval:
        yield f"evaluation runs {plan.eval} batches of the training batch size and keeps the logits"


def _said_of_base(plan: Plan) -> Iterator[str]:
    if plan.scheme is not None:
        yield quantised.said_of_types(plan)
    if plan.scheme is not None and dict(plan.parallel_args).get("load") == "cpu":
        yield (
            "each process loads the whole base into host memory (device_map={'': 'cpu'}), and "
            "fully_shard moves it to its GPU block by block; quantization scales are not sharded"
        )
    elif plan.scheme is not None and layouts.of(plan).name in layouts.SHARDED:
        yield (
            "each GPU loads the whole base before it is sharded, as transformers does; "
            "quantization scales are not sharded"
        )
    if plan.scheme == "int8":
        yield "no activation is an outlier (6.0 and above), which int8 products handle separately"
        if plan.checkpointing:
            yield (
                "checkpointing has use_reentrant=False, under which bitsandbytes keeps the inputs "
                "of int8 layers as long as the outputs live; with True they are not kept"
            )


def _said_of_inference(plan: Plan) -> Iterator[str]:
    yield from _said_of_base(plan)
    if plan.generate is None:
        yield "one forward pass without gradients"
        return
    rest = plan.generate - 1
    yield (
        f"one pass over the prompt gives the first token; {rest:,} passes give one token each"
        if rest
        else "one pass over the prompt gives the only token"
    )
    yield f"generate() of transformers runs{' a beam search' if plan.beams > 1 else ', greedily'}"
    if plan.cache.endswith("static"):
        yield "decoding is not compiled (disable_compile=True)"
