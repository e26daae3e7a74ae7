"""Builds the model, the batches and the notes that a plan asks for."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.errors import UsageError
from memcalc.records.model import Inventory
from memcalc.records.names import AUTOCAST_DTYPES, SHARDED
from memcalc.records.plan import Plan
from memcalc.records.trace import EQUAL_LENGTHS
from memcalc.registry import Choice
from memcalc.workload import audio, float8, inference, layerdrop, layouts, loops, quantized, tasks
from memcalc.workload.chunked import chunk_loss
from memcalc.workload.inputs import Inputs, Use, check, read_specs
from memcalc.workload.inventory import take
from memcalc.workload.job import PRECISIONS, Program
from memcalc.workload.loops import Loop
from memcalc.workload.meta_run import casts_images
from memcalc.workload.model import attach, attention_setting, build, find_text_config
from memcalc.workload.quantized import compute_dtype
from memcalc.workload.tasks import CALLABLE, Task


def prepare(plan: Plan, choice: Choice, *, device: str = "meta") -> Program:
    """Build a plan's program: its model on a device, the maker of batches, and notes.

    Raises:
        UsageError: the model cannot be built or checkpointed, or a pattern matches nothing.
    """
    source = models.find(plan.model)
    head = tasks.choose(source, plan.task)
    precision = PRECISIONS[plan.precision]
    with torch.device(device if plan.scheme is None else "meta"):
        model = build(
            source,
            head,
            attention=attention_setting(plan),
            dtype=precision.weights if plan.scheme is None else compute_dtype(plan),
            as_loaded=plan.scheme is not None,
        )
    program = make_program(plan, choice, model, head.task, name=source.name)
    return replace(program, inventory=replace(program.inventory, config=source.digest))


def make_program(
    plan: Plan, choice: Choice, model: torch.nn.Module, task: Task, *, name: str = ""
) -> Program:
    """Make a plan's program of a model that is already built.

    Raises:
        UsageError: the model cannot be checkpointed, or a pattern matches nothing.
    """
    if plan.loss_chunks > 1:
        chunk_loss(model, plan.loss_chunks)
    cached = _set_kv_cache(model, plan.kv_cache)
    if plan.scheme is None:
        model, inventory = _adapt_and_freeze(model, plan, name or plan.model, task.name)
    else:
        # A quantized model is loaded first.
        inventory = take(model, name or plan.model, task.name)
    inference.check(model, plan)
    inputs, notes = _describe_inputs(model, task, plan)
    batch = inputs.make if inputs is not None else read_specs(plan.inputs)
    if task is CALLABLE:
        check(model, batch("meta"))
    notes.extend(_list_assumptions(plan, choice, loops.of(plan), cached=cached))
    if not plan.infers:
        notes.extend(layerdrop.notes(model))
    return Program(
        plan=plan,
        model=model,
        inventory=inventory,
        choice=choice,
        batch=batch,
        seq=inputs.seq if inputs is not None and inputs.has_tokens else None,
        assumptions=tuple(notes),
        inputs=inputs,
    )


def _adapt_and_freeze(
    model: torch.nn.Module, plan: Plan, name: str, task: str
) -> tuple[torch.nn.Module, Inventory]:
    """Add adapters, freeze and enable checkpointing by the plan; return model and tensors."""
    if plan.adapters is not None:
        model = attach(model, plan.adapters, autocast=plan.autocast_adapter_dtype)
    inventory = take(model, name, task, plan.freeze)
    if not inventory.trainable and not plan.infers:
        unset = "no parameter of the model has requires_grad set"
        how = "freeze fewer parameters" if plan.freeze else unset
        raise UsageError(f"Nothing is left to train: {how}.")
    if plan.checkpointing:
        checkpoint(model, plan)
    return model, inventory


NON_REENTRANT = (
    "checkpointing has use_reentrant=False, under which bitsandbytes keeps the inputs of int8 "
    "layers as long as the outputs live (else --use-reentrant)"
)
REENTRANT = (
    "checkpointing has use_reentrant=True; with False, bitsandbytes keeps the inputs of int8 "
    "layers as long as the outputs live (--no-use-reentrant)"
)


def finish_quantized(program: Program, loaded: torch.nn.Module) -> Program:
    """Return the program with its quantized model, now loaded, prepared and adapted.

    Raises:
        UsageError: it cannot be adapted or checkpointed, or a pattern matches nothing.
    """
    plan, known, notes = program.plan, program.inventory, program.assumptions
    if plan.checkpointing:
        find_checkpointing(loaded)
    if not plan.infers:
        quantized.prepare(loaded, plan)
    model, inventory = _adapt_and_freeze(loaded, plan, known.model, known.task)
    if plan.scheme == "int8" and plan.checkpointing:
        notes = (*notes, REENTRANT if _is_reentrant(model) else NON_REENTRANT)
    inventory = replace(inventory, config=known.config)
    return replace(program, model=model, inventory=inventory, assumptions=notes)


def _set_kv_cache(model: torch.nn.Module, wanted: bool | None) -> bool:
    """Set ``use_cache`` of the model's config if the plan says; return the resulting value.

    Raises:
        UsageError: the model has none to return, and the plan asks for them.
    """
    config: Any = getattr(model, "config", None)
    has = "use_cache" in inspect.signature(model.forward).parameters
    if wanted is None:
        return has and bool(getattr(config, "use_cache", False))
    if not has or config is None:
        if wanted:
            raise UsageError(
                f"{type(model).__name__} keeps no keys and values: type --no-kv-cache."
            )
        return False
    for part in (config, find_text_config(config)):
        part.use_cache = wanted
    return wanted


def _describe_inputs(
    model: torch.nn.Module, task: Task, plan: Plan
) -> tuple[Inputs | None, list[str]]:
    """Return the maker of the plan's batches (None if the user describes them) and notes."""
    if plan.inputs:
        return None, []
    padding = plan.padding if plan.padding is not None else not task.packed
    use = Use.PROMPTS if plan.generate else Use.FORWARD if plan.inference else Use.TRAINING
    inputs = Inputs(model, task, batch=plan.batch, seq=plan.seq, padding=padding, use=use)
    if plan.generate is not None:
        inputs.make_room(plan.generate)
    notes: list[str] = []
    half = plan.precision in ("bf16", "fp16")
    if inputs.has_images and half and not casts_images(model, inputs.make("meta")):
        inputs.images = PRECISIONS[plan.precision].weights
        notes.append(f"images are in {plan.precision}, because the model does not cast them")
    if inputs.text_only:
        notes.append("batches hold text only: no images and no audio")
    if inputs.recordings.follows:
        notes.append("each audio clip is as long as its text")
    elif inputs.has_audio:
        notes.append(f"each audio clip lasts {audio.SECONDS} seconds")
    if inputs.whole != inputs.seq:
        places = inputs.whole - inputs.seq
        notes.append(f"{places} tokens of each sample are audio; --seq counts its text")
    if getattr(inputs.config, "model_type", "") == "vibevoice":
        notes.append("the diffusion loss of its audio is not counted, only the loss of its tokens")
    if plan.seq is not None and not inputs.goes_by_tokens:
        notes.append(f"the model takes no tokens: --seq {plan.seq} changes nothing")
    if inputs.has_tokens and padding:
        notes.append("padded batches with an attention mask")
        if use is Use.TRAINING and plan.target == "cuda":
            notes.append(f"{EQUAL_LENGTHS}{'' if plan.devices > 1 else ' (else --lengths)'}")
    elif inputs.has_tokens:
        packed = "no padding (packed sequences), so no attention mask"
        notes.append("prompts of equal length (no padding)" if plan.generate else packed)
    return inputs, notes


def find_checkpointing(model: torch.nn.Module) -> Callable[..., None]:
    """Return the model's ``gradient_checkpointing_enable``, or raise UsageError.

    Raises:
        UsageError: the model has none.
    """
    enable: Any = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None or not getattr(model, "supports_gradient_checkpointing", True):
        raise UsageError(
            f"{type(model).__name__} does not support gradient checkpointing: "
            "leave --checkpointing out."
        )
    return enable  # type: ignore[no-any-return]


def checkpoint(model: torch.nn.Module, plan: Plan) -> None:
    """Turn on activation checkpointing for every layer, or every n-th, as the plan says.

    Raises:
        UsageError: the model has no checkpointing, or its transformers none of every n-th layer.
    """
    enable = find_checkpointing(model)
    every = plan.checkpoint_every
    variant: Any = None if plan.use_reentrant is None else {"use_reentrant": plan.use_reentrant}
    if plan.recompute == "selective":
        variant = {"use_reentrant": False, "context_fn": make_selective_contexts}
    prepared = plan.scheme is not None and plan.kbit_prepare
    if every == 1:
        if plan.loop == "trainer" or not prepared:
            enable(*([variant] if variant else []))
        if plan.adapters is not None and not prepared and _is_reentrant(model):
            # Else no input of a layer needs gradients, and backward is refused.
            model.enable_input_require_grads()  # type: ignore[operator]
        return
    sparse = getattr(model, "activation_checkpointing_enable", None)
    if sparse is None:
        raise UsageError(
            "This transformers recomputes all layers or none: install 5.23, or leave "
            "--checkpoint-every out."
        )
    sparse(every_n_layers=every, activation_checkpointing_kwargs=variant)


def make_selective_contexts() -> Any:
    """Make checkpoint contexts that save attention and every second matrix product.

    Source: torchtitan 0.2, ``distributed/activation_checkpoint.py``. PyTorch has it since 2.5.
    """
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = {
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        aten.max.default,
    }
    products: Counter[bool] = Counter()

    def choose(context: Any, operator: Any, *_: Any, **__: Any) -> Any:
        products[context.is_recompute] += operator is aten.mm.default
        second = operator is aten.mm.default and products[context.is_recompute] % 2
        keeps = operator in kept or second
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(choose)


def _is_reentrant(model: torch.nn.Module) -> bool:
    """Return True if the model's checkpointing is PyTorch's reentrant variant."""
    found = (getattr(part, "_gradient_checkpointing_func", None) for part in model.modules())
    return any(one.keywords.get("use_reentrant", True) for one in found if one is not None)


def _list_assumptions(plan: Plan, choice: Choice, loop: Loop, *, cached: bool) -> Iterator[str]:
    """Yield notes on what the simulated run is assumed to do."""
    if plan.infers:
        yield from _base_assumptions(plan)
        yield from _inference_assumptions(plan)
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
    if plan.loop == "plain" and layouts.mixes(plan):
        half = AUTOCAST_DTYPES[plan.precision]
        yield (
            f"{plan.precision} gathers and reduces in {half}, as accelerate does (else "
            "--parallel-arg reduce_dtype=float32, as torchtitan, or param_dtype=none: autocast)"
        )
    if layouts.of(plan).package == "deepspeed":
        yield "DeepSpeed allocates its flat buffers on the GPU, as it does where there is room"
    if plan.optim_in_backward or choice.row.in_backward:
        yield "each parameter is updated inside backward, and its gradient freed at once"
    yield from _base_assumptions(plan)
    if plan.liger:
        yield "Liger replaces its default kernels, including the loss and its logits"
    if plan.float8 is not None:
        yield float8.describe(plan)
    if plan.resume:
        yield "the checkpoint is read into host memory first, as transformers' Trainer does"
    if plan.eval:
        yield f"evaluation runs {plan.eval} batches of the training batch size and keeps the logits"


def _base_assumptions(plan: Plan) -> Iterator[str]:
    if plan.scheme is not None:
        yield quantized.describe_dtypes(plan)
    if plan.scheme is not None and dict(plan.parallel_args).get("load") == "cpu":
        yield (
            "each process loads the whole base into host memory (device_map={'': 'cpu'}), and "
            "fully_shard moves it to its GPU block by block; quantization scales are not sharded"
        )
    elif plan.scheme is not None and layouts.of(plan).name in SHARDED:
        yield (
            "each GPU loads the whole base before it is sharded, as transformers does; "
            "quantization scales are not sharded"
        )
    if plan.scheme == "int8":
        yield "no activation is an outlier (6.0 and above), which int8 products handle separately"


def _inference_assumptions(plan: Plan) -> Iterator[str]:
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
