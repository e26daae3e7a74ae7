"""What people do against too high a peak, as changes of a plan, and what each costs.

A row says what changes, where it cannot be done and why, and what it costs, with the source of
that; what it saves is never said here, but estimated in full. ``rank`` orders by cost:

====  ===================================================================================
0     same arithmetic, no slower
1     same gradient from smaller pieces
2     products in half precision, weights and update in fp32
3, 4  same arithmetic, part of the forward runs twice, or no accumulation and no clipping
5     optimizer state in 8 bit
6     weights in half precision
7     other parameters train
8     other parameters train, around weights that are rounded to 4 bit
====  ===================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from memcalc import registry
from memcalc.catalog import gpus, models
from memcalc.estimation.understand import checkpoint_refusal, quant_refusal
from memcalc.kernels.architectures import ARCHITECTURES
from memcalc.records.model import Parameter
from memcalc.records.plan import Plan
from memcalc.records.texts import USUAL_LORA
from memcalc.remedies import sources
from memcalc.remedies.records import Change, Remedy
from memcalc.workload import layouts, loops, tasks
from memcalc.workload.tasks import Task

SHARDED = "fsdp2"
"""The layout that divides most."""
SHARDS = {"zero1": "optimizer state", SHARDED: "weights, gradients and state"}
"""Layouts that divide among GPUs what DDP holds on each, those that divide less first."""
CHUNKS = 8
"""Pieces of a loss; the default of torchtune's ``CEWithChunkedOutputLoss`` (0.6)."""

_FUSED = "torch.optim documentation (2.13): fused is usually faster than foreach"
_SET_TO_NONE = "torch.optim.Optimizer.zero_grad (2.13): the default since 2.0"
_OUTPUTS = "what nothing names is freed; the Trainer keeps no outputs either (transformers 5.23)"
_CACHE = "only generation reads it; TrainingArguments.use_cache is False (transformers 5.23)"
_SDPA = "Dao et al. 2022, arXiv:2205.14135: exact attention, and faster"
_HALF = "transformers documentation, Optimizing inference: weights in half precision"
_PURE = "Zamirai et al. 2020, arXiv:2010.06192: nearest rounding loses small updates"
_RECOMPUTE = "Chen et al. 2016, arXiv:1604.06174; operations counted in the trace"
_IN_BACKWARD = "PyTorch's tutorial on fusing the optimizer step into the backward pass (2.13)"
_EXPANDABLE = "CUDA semantics in PyTorch's documentation (2.13): expandable_segments"
_ACCUMULATE = (
    "mean of equal micro-batches is the mean of the batch; not so for batch norm, nor for a mean "
    "over tokens where padding leaves some micro-batches fewer of them"
)
_SHARDS = "Rajbhandari et al. 2020, arXiv:1910.02054, section 7: three times the model, not twice"
_CHUNKED = "same loss up to rounding, held by memcalc's tests; operations counted in the trace"

_SWITCHES = ("foreach", "fused", "capturable", "differentiable")
"""Arguments of torch.optim that choose how a step is run, not what it computes."""
_SETTING = re.compile(r",?expandable_segments:\w*")
_ONE = Parameter(name="weight", shape=(4096, 4096), dtype="float32")
"""Large enough to have whatever state an optimizer keeps."""
_NO_GPU = "a CPU run has no CUDA allocator and no CUDA kernels"


def candidates(plan: Plan) -> list[Remedy]:
    """The remedies of a plan, cheapest first; what it does already is left out.

    Raises:
        UsageError: the plan names a model or task that is not known.
    """
    if plan.command:
        return []
    task = tasks.choose(models.find(plan.model), plan.task).task
    rows = _OF_INFERENCE if plan.infers else _ROWS
    found = [remedy for row in rows for remedy in row(plan, task)]
    return sorted(found, key=lambda remedy: remedy.rank)


def accumulate(plan: Plan, pieces: int) -> Remedy:
    """The same batch in so many equal pieces, one after the other."""
    size, count = plan.batch // pieces, plan.grad_accum * pieces
    return Remedy(
        key="accumulate",
        name=f"accumulate (micro-batches of {size})",
        title=f"micro-batches of {size}, {count} per step (--batch {size} --grad-accum {count})",
        changes=(("batch", size), ("grad_accum", count)),
        rank=1,
        cost="same gradient; more and smaller kernels, slower where they leave the GPU idle",
        source=_ACCUMULATE,
    )


def two_of(plan: Plan, pieces: int) -> Remedy:
    """Two of those micro-batches: what all of them ask for, at a fraction of the events."""
    whole, size = accumulate(plan, pieces), plan.batch // pieces
    if plan.grad_accum * pieces == 2:
        return whole
    changes: tuple[Change, ...] = (("batch", size), ("grad_accum", 2))
    return replace(whole, name=f"two micro-batches of {size}", changes=changes)


def pieces_of(plan: Plan) -> list[int]:
    """Into how many equal pieces the batch can be cut, fewest first."""
    if plan.inputs:
        return []
    return [n for n in range(2, plan.batch + 1) if plan.batch % n == 0]


def half_of(plan: Plan) -> str:
    """The half precision the GPU computes in."""
    if plan.gpu is not None and not ARCHITECTURES[gpus.find(plan.gpu).capability].bf16:
        return "fp16"
    return "bf16"


def _fused(plan: Plan, task: Task) -> Iterator[Remedy]:
    choice = registry.of(plan)
    if choice.kind not in ("foreach", "for-loop"):
        return
    settled = tuple(pair for pair in plan.optim_args if pair[0] not in ("fused", "foreach"))
    none = f"{choice.row.name} has no fused step" if "fused" not in choice.row.defaults else None
    yield Remedy(
        key="fused",
        title="fused optimizer (--optim-arg fused=true)",
        changes=(("optim_args", (*settled, ("fused", True))),),
        rank=0,
        cost="none known",
        source=_FUSED,
        unfit=_NO_GPU if plan.target == "cpu" else none,
    )


def _set_to_none(plan: Plan, task: Task) -> Iterator[Remedy]:
    if not plan.set_to_none:
        yield Remedy(
            key="set_to_none",
            title="zero_grad(set_to_none=True)",
            changes=(("set_to_none", True),),
            rank=0,
            cost="none known",
            source=_SET_TO_NONE,
        )


def _outputs(plan: Plan, task: Task) -> Iterator[Remedy]:
    if loops.of(plan).keep_outputs(plan):
        yield Remedy(
            key="outputs",
            title="drop the outputs: loss = model(**batch).loss (--no-keep-outputs)",
            changes=(("keep_outputs", False),),
            rank=0,
            cost="none, where nothing reads them after the loss",
            source=_OUTPUTS,
        )


def _kv_cache(plan: Plan, task: Task) -> Iterator[Remedy]:
    config = models.find(plan.model).config or {}
    off = config.get("use_cache") is False or plan.checkpointing or plan.loop == "trainer"
    if plan.kv_cache is False or (plan.kv_cache is None and off):
        return
    yield Remedy(
        key="kv cache",
        title="return no keys and values: use_cache=False (--no-kv-cache)",
        changes=(("kv_cache", False),),
        rank=0,
        cost="none: training does not read them",
        source=_CACHE,
    )


def _attention(plan: Plan, task: Task) -> Iterator[Remedy]:
    if plan.attention in ("eager", "math"):
        yield Remedy(
            key="sdpa",
            title="PyTorch's fused attention (--attention auto)",
            changes=(("attention", "auto"),),
            rank=0,
            cost="none known",
            source=_SDPA,
        )


def _expandable(plan: Plan, task: Task) -> Iterator[Remedy]:
    packed = "".join(plan.alloc_conf.split())
    if "expandable_segments:true" in packed.lower():
        return
    kept = _SETTING.sub("", packed).strip(",")
    setting = ",".join(filter(None, (kept, "expandable_segments:True")))
    yield Remedy(
        key="expandable",
        title="PYTORCH_ALLOC_CONF=expandable_segments:True",
        changes=(("alloc_conf", setting),),
        rank=0,
        cost="none known",
        source=_EXPANDABLE,
        unfit=_NO_GPU if plan.target == "cpu" else None,
    )


def _accumulate(plan: Plan, task: Task) -> Iterator[Remedy]:
    pieces = pieces_of(plan)
    reason = None
    if plan.inputs:
        reason = "the batch is part of --input's description"
    elif not pieces:
        reason = "a batch of one cannot be cut"
    elif task.in_batch:
        reason = "its loss compares the samples of a batch, so pieces have another gradient"
    remedy = accumulate(plan, pieces[0] if pieces else 1)
    yield remedy if reason is None else _refused(remedy, reason, title="smaller micro-batches")


def _amp(plan: Plan, task: Task) -> Iterator[Remedy]:
    if plan.precision in ("fp32", "tf32"):
        half = half_of(plan)
        yield Remedy(
            key="amp",
            title=f"autocast to {half} (--precision amp-{half})",
            changes=(("precision", f"amp-{half}"),),
            rank=2,
            cost=f"products in {half}; the update stays fp32",
            source=sources.AMP,
        )


def _sharded(plan: Plan, task: Task) -> Iterator[Remedy]:
    spread = layouts.spread(plan)
    if spread.world == 1 or spread.layout not in ("ddp", "zero1"):
        return
    for name, what in SHARDS.items():
        if name == spread.layout:
            continue
        yield Remedy(
            key=name,
            title=f"{what} in shards (--parallel {name})",
            changes=(("devices", spread.world), ("parallel", name), ("parallel_args", ())),
            rank=3,
            cost="half more bytes between GPUs in a step",
            source=_SHARDS,
        )


def _chunked(plan: Plan, task: Task) -> Iterator[Remedy]:
    if plan.loss_chunks == 1:
        yield Remedy(
            key="chunked loss",
            title=f"loss in {CHUNKS} pieces (--loss-chunks {CHUNKS})",
            changes=(("loss_chunks", CHUNKS),),
            rank=3,
            cost="output head runs twice",
            source=_CHUNKED,
            unfit=None if task.loss_in_pieces else "only a causal language model's loss is cut",
        )


def _in_backward(plan: Plan, task: Task) -> Iterator[Remedy]:
    if plan.optim_in_backward or registry.of(plan).row.in_backward:
        return
    # What PyTorch itself cannot run together is refused where the changed plan is made.
    clips = plan.max_grad_norm is None and loops.of(plan).clip_to(plan) is not None
    yield Remedy(
        key="in backward",
        title="update inside backward (--optim-in-backward)",
        changes=(("optim_in_backward", True),),
        rank=3,
        cost="no accumulation, no clipping; one small launch a parameter",
        source=_IN_BACKWARD,
        unfit=f"the {plan.loop} loop clips gradients: all must be known" if clips else None,
    )


def _checkpointing(plan: Plan, task: Task) -> Iterator[Remedy]:
    if not plan.checkpointing:
        yield Remedy(
            key="checkpointing/2",
            title="checkpoint every second layer (--checkpointing --checkpoint-every 2)",
            changes=(("checkpointing", True), ("checkpoint_every", 2)),
            rank=3,
            cost="half the layers run twice forward",
            source=_RECOMPUTE,
        )
    if not plan.checkpointing or plan.checkpoint_every > 1:
        yield Remedy(
            key="checkpointing",
            title="checkpoint every layer (--checkpointing)",
            changes=(("checkpointing", True), ("checkpoint_every", 1)),
            rank=4,
            cost="layers run twice forward",
            source=_RECOMPUTE,
        )


def _8bit(plan: Plan, task: Task) -> Iterator[Remedy]:
    choice = registry.of(plan)
    if choice.args.get("optim_bits") == 8:
        return
    twin = choice.row.twin_8bit
    reason = f"no {choice.row.name} with 8-bit states is known" if twin is None else None
    if choice.closed_form and not choice.state([_ONE]).tensors:
        reason = f"{choice.row.name} keeps no state as it is set"
    lost = _lost(plan, twin) if twin is not None else None
    cpu = "bitsandbytes' 8-bit states are for GPUs" if plan.target == "cpu" else None
    yield Remedy(
        key="8-bit states",
        title=f"8-bit optimizer states{f' (--optim {twin})' if twin else ''}",
        changes=_optimizer(plan, twin) if twin is not None else (),
        rank=5,
        cost="states in 8 bit",
        source=sources.EIGHT_BIT,
        unfit=reason or lost or cpu,
    )


def _pure(plan: Plan, task: Task) -> Iterator[Remedy]:
    if plan.precision in ("bf16", "fp16"):
        return
    slow = ", which this GPU computes slowly" if half_of(plan) != "bf16" else ""
    yield Remedy(
        key="bf16",
        title="everything in bf16 (--precision bf16)",
        changes=(("precision", "bf16"),),
        rank=6,
        cost=f"weights in bf16{slow}: small updates are lost",
        source=_PURE,
    )
    if registry.of(plan).implementation != "torch.optim.AdamW":
        return
    name = "memcalc.adamw_bf16"
    yield Remedy(
        key="bf16, corrected",
        title=f"bf16 with a correction term (--precision bf16 --optim {name})",
        changes=(("precision", "bf16"), *_optimizer(plan, name)),
        rank=6,
        cost=f"weights in bf16{slow}; a third state carries what rounding loses",
        source=sources.CORRECTED,
        unfit=_lost(plan, name),
    )


def _half(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Where nothing trains no update is lost."""
    if plan.precision in ("bf16", "fp16"):
        return
    half = half_of(plan)
    yield Remedy(
        key=half,
        title=f"everything in {half} (--precision {half})",
        changes=(("precision", half),),
        rank=1,
        cost=f"weights, results and cache in {half}",
        source=_HALF,
    )


def _lora(plan: Plan, task: Task) -> Iterator[Remedy]:
    if plan.adapters is None:
        yield Remedy(
            key="LoRA",
            title=f"LoRA (--lora {USUAL_LORA})",
            changes=(("lora", USUAL_LORA),),
            rank=7,
            cost="adapters train, the model itself does not",
            source=sources.LORA,
        )


def _qlora(plan: Plan, task: Task) -> Iterator[Remedy]:
    if plan.scheme is not None:
        return
    changes: tuple[Change, ...] = (("quant", "nf4-dq"), ("lora", plan.adapters or USUAL_LORA))
    if plan.precision in ("fp32", "tf32"):
        changes = (*changes, ("precision", half_of(plan)))
    asked, source = replace(plan, quant="nf4-dq"), models.find(plan.model)
    refused = checkpoint_refusal(asked, source) is not None
    quantised_already = "the checkpoint is quantised already, in another way" if refused else None
    yield Remedy(
        key="QLoRA",
        title=f"QLoRA ({' '.join(f'--{name} {value}' for name, value in changes)})",
        changes=changes,
        rank=8,
        cost="adapters train, on weights rounded to 4 bit that every product turns back",
        source=sources.QLORA,
        unfit=quant_refusal(asked, source) or quantised_already,
    )


def _optimizer(plan: Plan, name: str) -> tuple[Change, ...]:
    """The change to another optimizer, with the arguments that it takes too."""
    takes = _takes(name)
    kept = tuple(pair for pair in plan.optim_args if pair[0] in takes)
    return ("optim", name), ("optim_args", kept)


def _lost(plan: Plan, name: str) -> str | None:
    """What of the plan's arguments another optimizer cannot be told; ``None``: nothing of note."""
    takes = (*_takes(name), *_SWITCHES)
    lost = [key for key, value in plan.optim_args if value and key not in takes]
    return f"{name} has no {', '.join(lost)}" if lost else None


def _takes(name: str) -> tuple[str, ...]:
    row = registry.find(name, {}).row
    return (*row.defaults, *row.takes)


def _refused(remedy: Remedy, reason: str, *, title: str) -> Remedy:
    return replace(remedy, unfit=reason, title=title, changes=())


_ROWS: tuple[Callable[[Plan, Task], Iterator[Remedy]], ...] = (
    *(_fused, _set_to_none, _outputs, _kv_cache, _attention, _expandable, _accumulate, _amp),
    *(_sharded, _chunked, _in_backward, _checkpointing, _8bit, _pure, _lora, _qlora),
)
_OF_INFERENCE: tuple[Callable[[Plan, Task], Iterator[Remedy]], ...] = (
    _attention,
    _expandable,
    _half,
)
"""Where nothing is trained."""
