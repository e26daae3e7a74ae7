"""The table of remedies, by cost: free, slower, less precise.

A row has the changes, why they cannot be made on a plan, and the cost with its source; the saving
is never in a row, but estimated in full. ``rank`` orders by cost:

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

import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from memcalc import registry
from memcalc.advice.remedies.records import Change, Remedy
from memcalc.catalog import gpus, models, quantized
from memcalc.catalog.gpus import architectures
from memcalc.estimation.question import look_up
from memcalc.records import names
from memcalc.records.model import Parameter
from memcalc.records.plan import Plan
from memcalc.records.values import USUAL_LORA, adapter
from memcalc.registry import Choice
from memcalc.workload import layouts, loops
from memcalc.workload.liger import knows
from memcalc.workload.tasks import Task

AMP = "Micikevicius et al. 2018, arXiv:1710.03740: same accuracy in its trials, faster products"
EIGHT_BIT = "Dettmers et al. 2022, arXiv:2110.02861: same accuracy in its trials"
CORRECTED = "docs/optimizers.md and evidence/finetune.json of memcalc"
LORA = "Hu et al. 2021, arXiv:2106.09685: adapters train, the model is frozen"
FOUR_BIT = "Dettmers and Zettlemoyer 2022, arXiv:2212.09720: best of equal bytes in its trials"
QLORA = "Dettmers et al. 2023, arXiv:2305.14314: as good as 16-bit LoRA in its trials"
_FUSED = "torch.optim documentation (2.13): fused is usually faster than foreach"
_SET_TO_NONE = "torch.optim.Optimizer.zero_grad (2.13): the default since 2.0"
_OUTPUTS = "unreferenced tensors are freed; the Trainer keeps no outputs either (transformers 5.23)"
_CACHE = "only generation reads it; TrainingArguments.use_cache is False (transformers 5.23)"
_SDPA = "Dao et al. 2022, arXiv:2205.14135: exact attention, and faster"
_EXPANDABLE = "CUDA semantics in PyTorch's documentation (2.13): expandable_segments"
_NO_GPU = "a CPU run has no CUDA allocator and no CUDA kernels"
_SETTING = re.compile(r",?expandable_segments:\w*")
_NONE = "none"
_HALF = "transformers documentation, Optimizing inference: weights in half precision"
_PURE = "Zamirai et al. 2020, arXiv:2010.06192: nearest rounding loses small updates"
_KBIT = "peft 0.17, prepare_model_for_kbit_training: casts what is not quantized to fp32"
_SWITCHES = ("foreach", "fused", "capturable", "differentiable")
"""Arguments of torch.optim that choose how a step is run, not what it computes."""
_ONE = Parameter(name="weight", shape=(4096, 4096), dtype="float32")
"""Large enough to have whatever state an optimizer keeps."""


def row(
    rank: int, key: str, title: str, cost: str, source: str, unfit: str | None = None, **fields: Any
) -> Remedy:
    """Return a remedy of this cost rank and text that sets these fields of the plan."""
    text = {"key": key, "title": title, "cost": cost, "source": source}
    return Remedy(rank=rank, **text, unfit=unfit, changes=tuple(fields.items()))


def of_step(plan: Plan) -> Iterator[Remedy]:
    """Yield remedies in the step: fused optimizer, set_to_none, no kept outputs, no KV cache."""
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
        cost = "none, if nothing reads them after the loss"
        yield row(0, "outputs", title, cost, _OUTPUTS, keep_outputs=False)
    config = models.find(plan.model).config or {}
    off = config.get("use_cache") is False or plan.checkpointing or plan.loop == "trainer"
    if plan.kv_cache or (plan.kv_cache is None and not off):
        title = "return no keys and values: use_cache=False (--no-kv-cache)"
        cost = "none: training never reads them"
        yield row(0, "kv cache", title, cost, _CACHE, kv_cache=False)


def of_kernels(plan: Plan) -> Iterator[Remedy]:
    """Yield remedies without other arithmetic: fused attention, expandable segments."""
    if plan.attention in ("eager", "math"):
        title = "PyTorch's fused attention (--attention auto)"
        yield row(0, "sdpa", title, _NONE, _SDPA, attention="auto")
    yield from expandable(plan)


def expandable(plan: Plan) -> Iterator[Remedy]:
    """Yield the remedy of expandable segments, unless the plan has them."""
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
    """Yield the remedy of half-size micro-batches, or why the batch cannot be split."""
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
    """Return the remedy that splits the batch into equal micro-batches (gradient accumulation)."""
    size, count = plan.batch // pieces, plan.grad_accum * pieces
    title = f"micro-batches of {size}, {count} per step (--batch {size} --grad-accum {count})"
    cost = "same gradient; smaller kernels, slower if they leave the GPU idle"
    remedy = row(1, "accumulate", title, cost, _ACCUMULATE, batch=size, grad_accum=count)
    return replace(remedy, name=f"accumulate (micro-batches of {size})")


def accumulate_two(plan: Plan, pieces: int) -> Remedy:
    """Return a cheap stand-in for ``accumulate``: only two micro-batches of the same size."""
    whole, size = accumulate(plan, pieces), plan.batch // pieces
    if plan.grad_accum * pieces == 2:
        return whole
    changes: tuple[Change, ...] = (("batch", size), ("grad_accum", 2))
    return replace(whole, name=f"two micro-batches of {size}", changes=changes)


def list_pieces(plan: Plan) -> list[int]:
    """Return the numbers of equal micro-batches that the batch can be split into, ascending."""
    if plan.inputs:
        return []
    return [n for n in range(2, plan.batch + 1) if plan.batch % n == 0]


def of_layouts(plan: Plan) -> Iterator[Remedy]:
    """Yield remedies over several GPUs: sharding, CPU offload, loading the base on the host."""
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
    if spread.layout not in names.SHARDED:
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
    """Yield remedies for the logits: the loss in chunks, or Liger's fused kernels."""
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
    """Yield remedies in backward: optimizer steps inside backward, activation checkpointing."""
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


def shard_over_gpus(plan: Plan, count: int) -> Remedy:
    """Return the remedy that shards the model and splits the batch over ``count`` GPUs."""
    return row(
        *(3, f"{count} GPUs", f"over {count} GPUs ({SHARDED})"),
        *(f"{count} GPUs, and traffic between them", _SHARDS),
        devices=count,
        parallel=SHARDED,
        batch=plan.batch * plan.grad_accum // count,
        grad_accum=1,
    )


def half_precision(plan: Plan) -> str:
    """Return "bf16", or "fp16" if the plan's GPU has no bfloat16."""
    if plan.gpu is not None and not architectures()[gpus.find(plan.gpu).capability].bf16:
        return "fp16"
    return "bf16"


def of_precision(plan: Plan) -> Iterator[Remedy]:
    """Yield remedies of precision: autocast, 8-bit optimizer states, bf16 weights."""
    half = half_precision(plan)
    if plan.precision in ("fp32", "tf32"):
        title = f"autocast to {half} (--precision amp-{half})"
        cost = f"matrix products in {half}; updates stay fp32"
        yield row(2, "amp", title, cost, AMP, precision=f"amp-{half}")
    choice = registry.of(plan)
    if choice.args.get("optim_bits") != 8:
        twin = choice.row.twin_8bit
        title = f"8-bit optimizer states{f' (--optim {twin})' if twin else ''}"
        yield row(
            *(5, "8-bit states", title, "states in 8 bit", EIGHT_BIT),
            unfit=_refuse_8_bit_states(plan, choice),
            **_change_optimizer(plan, twin),
        )
    if not plan.half_weights:
        slow = "" if half == "bf16" else ", which this GPU computes slowly"
        cost, title = f"weights in bf16{slow}", "everything in bf16 (--precision bf16)"
        yield row(6, "bf16", title, f"{cost}: small updates are lost", _PURE, precision="bf16")
        if choice.row.implementation == "torch.optim.AdamW":
            name = "memcalc.adamw_bf16"
            title = f"bf16 with a correction term (--precision bf16 --optim {name})"
            cost = f"{cost}; a third state carries what rounding loses"
            yield row(
                *(6, "bf16, corrected", title, cost, CORRECTED),
                unfit=_missing_arguments(plan, name),
                precision="bf16",
                **_change_optimizer(plan, name),
            )
    if plan.scheme is not None and plan.kbit_prepare:
        title = "norms, embeddings and head stay in 16 bit (--no-kbit-prepare)"
        cost = "norms and logits are no longer in fp32"
        yield row(2, "no kbit prepare", title, cost, _KBIT, kbit_prepare=False)


def of_weights(plan: Plan) -> Iterator[Remedy]:
    """Yield remedies for inference: weights in half precision or in 4 bit."""
    half = half_precision(plan)
    if not plan.half_weights:
        title, cost = f"everything in {half} (--precision {half})", "weights, results and cache in"
        yield row(1, half, title, f"{cost} {half}", _HALF, precision=half)
    if plan.scheme is None and plan.engine is None:
        options, changes = _quantize_changes(plan)
        title = f"weights in 4 bit ({options})"
        cost = "4-bit weights, dequantized for every product"
        yield row(8, "4 bit", title, cost, FOUR_BIT, unfit=_refuse_4_bit(plan), **changes)


def of_adapters(plan: Plan) -> Iterator[Remedy]:
    """Yield remedies with adapters: LoRA, half its rank, QLoRA."""
    if plan.adapters is None:
        title = f"LoRA (--lora {USUAL_LORA})"
        yield row(7, "LoRA", title, "only adapters train", LORA, lora=USUAL_LORA)
    elif (rank := adapter(plan.adapters).r) > 1:
        parts = [part.strip() for part in plan.adapters.split(",")]
        less = ",".join([f"r={rank // 2}", *(part for part in parts if not part.startswith("r="))])
        title = f"half the rank (--lora {less})"
        yield row(7, "lower rank", title, "adapters of half the size learn less", LORA, lora=less)
    if plan.scheme is None:
        options, changes = _quantize_changes(plan, lora=plan.adapters or USUAL_LORA)
        cost = "only adapters train; 4-bit weights are dequantized for every product"
        title = f"QLoRA ({options})"
        yield row(8, "QLoRA", title, cost, QLORA, unfit=_refuse_4_bit(plan), **changes)


def _quantize_changes(plan: Plan, **others: str) -> tuple[str, dict[str, Any]]:
    """Return 4-bit quantization as command-line options and as fields of the plan."""
    wide = plan.precision in ("fp32", "tf32")
    half = {"precision": half_precision(plan)} if wide else {}
    changes = {"quant": "nf4-dq", **others, **half}
    return " ".join(f"--{name} {value}" for name, value in changes.items()), changes


def _refuse_4_bit(plan: Plan) -> str | None:
    """Return why the model cannot be loaded in 4 bit, or None if it can."""
    asked = look_up(replace(plan, quant="nf4-dq"))
    source, over = asked.source, asked.spread
    if refused := quantized.base_refusal(asked.plan, source, over.layout, over.world):
        return refused
    already = quantized.refusal(source.config or {}, source.name, "nf4-dq", asked.capability)
    return "the checkpoint is quantized already, in another way" if already else None


def _refuse_8_bit_states(plan: Plan, choice: Choice) -> str | None:
    """Return why the optimizer cannot keep its states in 8 bit, or None if it can."""
    twin = choice.row.twin_8bit
    if choice.row.closed_form and not choice.state([_ONE]).tensors:
        return f"{choice.row.name} keeps no state with these settings"
    if twin is None:
        return f"no {choice.row.name} with 8-bit states is known"
    cpu = "bitsandbytes' 8-bit states are for GPUs" if plan.target == "cpu" else None
    return _missing_arguments(plan, twin) or cpu


def _change_optimizer(plan: Plan, name: str | None) -> dict[str, Any]:
    """Return the plan fields that switch to an optimizer, with the arguments it accepts."""
    if name is None:
        return {}
    takes = _list_arguments(name)
    kept = tuple(pair for pair in plan.optim_args if pair[0] in takes)
    return {"optim": name, "optim_args": kept}


def _missing_arguments(plan: Plan, name: str) -> str | None:
    """Return which of the plan's optimizer arguments ``name`` lacks, or None."""
    takes = (*_list_arguments(name), *_SWITCHES)
    lost = [key for key, value in plan.optim_args if value and key not in takes]
    return f"{name} has no {', '.join(lost)}" if lost else None


def _list_arguments(name: str) -> tuple[str, ...]:
    row = registry.find(name, {}).row
    return (*row.defaults, *row.takes)
