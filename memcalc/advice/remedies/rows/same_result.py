"""Remedies with the same result: at the same speed, or with a slower step."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from memcalc import registry
from memcalc.advice.remedies.records import Change, Remedy
from memcalc.advice.remedies.rows import row
from memcalc.catalog import models
from memcalc.records.plan import Plan
from memcalc.workload import layouts, loops
from memcalc.workload.liger import knows
from memcalc.workload.tasks import Task

_FUSED = "torch.optim documentation (2.13): fused is usually faster than foreach"
_SET_TO_NONE = "torch.optim.Optimizer.zero_grad (2.13): the default since 2.0"
_OUTPUTS = "unreferenced tensors are freed; the Trainer keeps no outputs either (transformers 5.23)"
_CACHE = "only generation reads it; TrainingArguments.use_cache is False (transformers 5.23)"
_SDPA = "Dao et al. 2022, arXiv:2205.14135: exact attention, and faster"
_EXPANDABLE = "CUDA semantics in PyTorch's documentation (2.13): expandable_segments"
_NO_GPU = "a CPU run has no CUDA allocator and no CUDA kernels"
_SETTING = re.compile(r",?expandable_segments:\w*")
_NONE = "none known"


def of_training(plan: Plan) -> Iterator[Remedy]:
    """Yield what frees memory that a step need not hold: lists, gradients, outputs, a cache."""
    choice = registry.of(plan)
    if choice.kind in ("foreach", "for-loop"):
        settled = tuple(one for one in plan.optim_args if one[0] not in ("fused", "foreach"))
        none = None if "fused" in choice.row.defaults else f"{choice.row.name} has no fused step"
        yield row(
            *(0, "fused", "fused optimizer (--optim-arg fused=true)", _NONE, _FUSED),
            unfit=_NO_GPU if plan.target == "cpu" else none,
            optim_args=(*settled, ("fused", True)),
        )
    if not plan.set_to_none:
        title = "zero_grad(set_to_none=True)"
        yield row(0, "set_to_none", title, _NONE, _SET_TO_NONE, set_to_none=True)
    if loops.of(plan).keep_outputs(plan):
        title = "drop the outputs: loss = model(**batch).loss (--no-keep-outputs)"
        cost = "none, unless something reads them after the loss"
        yield row(0, "outputs", title, cost, _OUTPUTS, keep_outputs=False)
    config = models.find(plan.model).config or {}
    off = config.get("use_cache") is False or plan.checkpointing or plan.loop == "trainer"
    if plan.kv_cache or (plan.kv_cache is None and not off):
        title = "return no keys and values: use_cache=False (--no-kv-cache)"
        cost = "none: training does not read them"
        yield row(0, "kv cache", title, cost, _CACHE, kv_cache=False)


def of_kernels(plan: Plan) -> Iterator[Remedy]:
    """Yield attention that does not store its scores, and segments that grow."""
    if plan.attention in ("eager", "math"):
        title = "PyTorch's fused attention (--attention auto)"
        yield row(0, "sdpa", title, _NONE, _SDPA, attention="auto")
    yield from expandable(plan)


def expandable(plan: Plan) -> Iterator[Remedy]:
    """Yield expandable segments, which keep free memory in one piece."""
    packed = "".join(plan.alloc_conf.split())
    if "expandable_segments:true" not in packed.lower():
        kept = _SETTING.sub("", packed).strip(",")
        setting = ",".join(filter(None, (kept, "expandable_segments:True")))
        yield row(
            *(0, "expandable", f"expandable segments (--alloc-conf {setting})", _NONE, _EXPANDABLE),
            unfit=_NO_GPU if plan.target == "cpu" else None,
            alloc_conf=setting,
        )


CHUNKS = 8
"""Pieces of a loss; the default of torchtune's ``CEWithChunkedOutputLoss`` (0.6)."""
SHARDED = "fsdp2"
"""The layout that divides most."""
SHARDS = {"zero1": "optimizer state", SHARDED: "weights, gradients and state"}
"""Layouts that divide among GPUs what DDP holds on each, those that divide less first."""
_RECOMPUTE = "Chen et al. 2016, arXiv:1604.06174; operations counted in the trace"
_IN_BACKWARD = "PyTorch's tutorial on fusing the optimizer step into the backward pass (2.13)"
_ACCUMULATE = (
    "mean of equal micro-batches is the mean of the batch; not so for batch norm, nor for a mean "
    "over tokens where padding leaves some micro-batches fewer of them"
)
_SHARDS = "Rajbhandari et al. 2020, arXiv:1910.02054, section 7: three times the model, not twice"
_LOADED = (
    "fully_shard moves what is not on its GPU, unit by unit (PyTorch 2.13, _move_states_to_device)"
)
_OFFLOADED = "CPUOffloadPolicy of PyTorch 2.13, torch/distributed/fsdp/_fully_shard"
_LIGER = (
    "Hsu et al. 2024, arXiv:2410.10989, and README of Liger-Kernel (0.8.5): exact, and a fifth "
    "more tokens a second in its trials"
)
_CHUNKED = "same loss up to rounding, held by memcalc's tests; operations counted in the trace"


def of_pieces(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Yield micro-batches of a half, or why the batch is not cut."""
    pieces = list_pieces(plan)
    reason = None
    if plan.inputs:
        reason = "the batch is part of --input's description"
    elif not pieces:
        reason = "a batch of one cannot be cut"
    elif task.in_batch:
        reason = "its loss compares the samples of a batch, so micro-batches change the gradient"
    remedy = accumulate(plan, pieces[0] if pieces else 1)
    if reason is not None:
        remedy = replace(remedy, unfit=reason, title="smaller micro-batches", changes=())
    yield remedy


def accumulate(plan: Plan, pieces: int) -> Remedy:
    """Return the remedy that cuts the batch into equal pieces, one after the other."""
    size, count = plan.batch // pieces, plan.grad_accum * pieces
    title = f"micro-batches of {size}, {count} per step (--batch {size} --grad-accum {count})"
    cost = "same gradient; smaller kernels, slower if they leave the GPU idle"
    remedy = row(1, "accumulate", title, cost, _ACCUMULATE, batch=size, grad_accum=count)
    return replace(remedy, name=f"accumulate (micro-batches of {size})")


def accumulate_two(plan: Plan, pieces: int) -> Remedy:
    """Return a step of two such micro-batches: the memory of all of them, with fewer events."""
    whole, size = accumulate(plan, pieces), plan.batch // pieces
    if plan.grad_accum * pieces == 2:
        return whole
    changes: tuple[Change, ...] = (("batch", size), ("grad_accum", 2))
    return replace(whole, name=f"two micro-batches of {size}", changes=changes)


def list_pieces(plan: Plan) -> list[int]:
    """Return the numbers of equal pieces that the batch can be cut into, fewest first."""
    if plan.inputs:
        return []
    return [n for n in range(2, plan.batch + 1) if plan.batch % n == 0]


def of_layouts(plan: Plan) -> Iterator[Remedy]:
    """Yield shards of what several GPUs hold alike, and offload of the shards to host memory."""
    spread, said = layouts.spread(plan), dict(plan.parallel_args)
    if spread.world > 1 and spread.layout in ("ddp", "zero1"):
        for name, what in SHARDS.items():
            if name != spread.layout:
                yield row(
                    *(3, name, f"{what} in shards (--parallel {name})"),
                    *("50 % more communication per step", _SHARDS),
                    devices=spread.world,
                    parallel=name,
                    parallel_args=(),
                )
    if spread.layout not in layouts.SHARDED:
        return
    if plan.scheme is not None and "load" not in said:
        yield row(
            *(1, "load on the host", "the base is loaded on the host (--parallel-arg load=cpu)"),
            "each process holds the whole base in host memory, and quantizes it on the CPU",
            _LOADED,
            parallel_args=(*plan.parallel_args, ("load", "cpu")),
        )
    if "offload" not in said:
        yield row(
            *(4, "offload", "shards wait in host memory (--parallel-arg offload=cpu)"),
            "weights cross the bus in forward and backward, and the CPU updates them",
            _OFFLOADED,
            parallel_args=(*plan.parallel_args, ("offload", "cpu")),
        )


def of_losses(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Yield logits of a part of the tokens at a time, or none at all by Liger's kernels."""
    if plan.loss_chunks == 1 and not plan.liger:
        title = f"loss in {CHUNKS} pieces (--loss-chunks {CHUNKS})"
        yield row(
            *(3, "chunked loss", title, "output head runs twice", _CHUNKED),
            unfit=None if task.loss_in_pieces else "only a causal language model's loss is cut",
            loss_chunks=CHUNKS,
        )
    if not plan.liger and knows(models.find(plan.model).model_type):
        cost = "another package's kernels; the model returns no logits"
        yield row(
            *(3, "Liger", "Liger's kernels (--liger)", cost, _LIGER),
            unfit=None if task.loss_in_pieces else "it is for causal language models",
            liger=True,
            loss_chunks=1,
        )


def of_backward(plan: Plan) -> Iterator[Remedy]:
    """Yield updates inside backward, and checkpointing."""
    if not plan.optim_in_backward and not registry.of(plan).row.in_backward:
        # What PyTorch itself cannot run together is refused where the changed plan is made.
        clips = plan.max_grad_norm is None and loops.of(plan).clip_to(plan) is not None
        why = f"the {plan.loop} loop clips gradients, which needs all of them at once"
        yield row(
            *(3, "in backward", "update inside backward (--optim-in-backward)"),
            "no accumulation, no clipping; one small kernel launch per parameter",
            _IN_BACKWARD,
            unfit=why if clips else None,
            optim_in_backward=True,
        )
    if not plan.checkpointing:
        title = "checkpoint every second layer (--checkpointing --checkpoint-every 2)"
        yield row(
            *(3, "checkpointing/2", title, "half the layers run their forward twice", _RECOMPUTE),
            checkpointing=True,
            checkpoint_every=2,
        )
    if not plan.checkpointing or plan.checkpoint_every > 1:
        yield checkpoint_all()


def checkpoint_all() -> Remedy:
    """Return the remedy that recomputes every layer in backward."""
    return row(
        *(4, "checkpointing", "checkpoint every layer (--checkpointing)"),
        *("layers run their forward twice", _RECOMPUTE),
        checkpointing=True,
        checkpoint_every=1,
    )


def spread_over(plan: Plan, count: int) -> Remedy:
    """Return the remedy that shares the model and the samples of a step among several GPUs."""
    return row(
        *(3, f"{count} GPUs", f"over {count} GPUs ({SHARDED})"),
        *(f"{count} GPUs, and traffic between them", _SHARDS),
        devices=count,
        parallel=SHARDED,
        batch=plan.batch * plan.grad_accum // count,
        grad_accum=1,
    )
