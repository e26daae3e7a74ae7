"""Checks a plan before anything heavy is imported, and looks up what it names."""

import contextlib
from collections.abc import Iterator

import msgspec

from memcalc import registry
from memcalc.catalog import gpus, inventory, models, positions, quantized
from memcalc.catalog.gpus import Gpu
from memcalc.engine.alloc_conf import parse_alloc_conf
from memcalc.errors import SettingError, UsageError
from memcalc.estimation.question import ASSUMED, torch_version
from memcalc.files import compiler, extras
from memcalc.records.model import Inventory
from memcalc.records.names import AUTOCAST_DTYPES, FLASH_ATTN, PLAIN_TENSORS
from memcalc.records.plan import Plan
from memcalc.records.values import adapter
from memcalc.registry import Choice
from memcalc.workload import cache_layers, float8, layouts, liger, loops, tasks

_FLASH_ATTN_SINCE = (8, 0)
"""The lowest compute capability that flash-attn supports."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A valid plan, with the model, task, optimizer and GPU that it names."""

    plan: Plan
    source: models.ModelSource
    head: tasks.Head
    choice: Choice
    gpu: Gpu | None

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the model's config and checkpoint."""
        return self.notes_at(self.plan.seq)

    def notes_at(self, seq: int | None) -> tuple[str, ...]:
        """Return the notes on config and checkpoint for samples of ``seq`` tokens."""
        config, revision = self.source.config, self.source.revision
        commit = (f"the config is revision {revision} of the hub",) if revision else ()
        return (
            *self.plan.assumed,
            *commit,
            *positions.notes(config, seq),
            *quantized.notes(config),
        )

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The memory that is not counted because of the model's checkpoint."""
        return quantized.uncounted_memory(self.source.config)


def check(plan: Plan) -> Checked:
    """Validate a plan and look up its model, task, optimizer and GPU.

    Raises:
        SettingError: an unknown model, task, optimizer or GPU, or a setting that the model or
            another setting does not allow.
    """
    choice, gpu = check_names(plan)
    if plan.command is not None:
        why = f"A command runs as it is: type memcalc simulate -- {plan.command}"
        raise SettingError("command", why)
    with _name_setting("model"):
        source = models.find(plan.model)
    with _name_setting("task"):
        head = tasks.choose(source, plan.task)
    _check_quant(plan, source)
    if plan.liger:
        _check_liger(source)
    if plan.compile and compiler.system_compiler() is None:
        why = "Triton compiles with a C compiler, and there is none: install gcc, or set CC."
        raise SettingError("compile", why)
    if source.factory is not None and plan.attention in ("eager", FLASH_ATTN):
        why = f"{source.name} chooses its attention itself: leave --attention out."
        raise SettingError("attention", why)
    if source.config is not None:
        refusal = positions.lengths(source.config).refusal(source.name, plan.seq)
        if refusal is not None:
            raise SettingError("seq", refusal)
    shipped = inventory.load(source, head.name) if plan.freeze or plan.adapters else None
    if shipped is not None:
        _check_parameters(plan, shipped)
    return Checked(plan=plan, source=source, head=head, choice=choice, gpu=gpu)


def check_names(plan: Plan) -> tuple[Choice, Gpu | None]:
    """Validate a plan's names except the model's; return its optimizer and GPU.

    Raises:
        SettingError: something is unknown, or has no meaning.
    """
    with _name_setting("task"):
        if plan.task != "auto":
            tasks.find(plan.task)
    with _name_setting("loop"):
        loops.of(plan)
    with _name_setting("optim"):
        choice = registry.of(plan)
        registry.check_precision(choice, plan)
    _check_layout(plan, choice)
    with _name_setting("cache"):
        cache_layers.check(plan.cache)
    with _name_setting("gpu"):
        gpu = gpus.find(plan.gpu) if plan.gpu is not None else None
    _check_flash_attn(plan, gpu)
    if plan.float8 is not None:
        _check_float8(plan, gpu)
    with _name_setting("torch"):
        version = torch_version(plan.torch)
    with _name_setting("alloc_conf"):
        parse_alloc_conf(plan.alloc_conf, torch=version)
    return choice, gpu


def _check_flash_attn(plan: Plan, gpu: Gpu | None) -> None:
    """Raise SettingError where flash-attn itself would (``mha_fwd``, flash_api.cpp, 2.8.3)."""
    if plan.attention != FLASH_ATTN:
        return
    if plan.precision in ("fp32", "tf32"):
        why = "flash-attn computes in 16 bits: add --precision amp-bf16, or bf16."
        raise SettingError("attention", why)
    if gpu is not None and gpu.capability < _FLASH_ATTN_SINCE:
        why = f"flash-attn needs Ampere or newer, and {gpu.name} is older: leave --attention out."
        raise SettingError("attention", why)


def _check_float8(plan: Plan, gpu: Gpu | None) -> None:
    """Raise SettingError if torchao, a GPU or the layout has no products in float8."""
    missing = extras.lacking("--float8 needs", "torchao", "torch-memcalc[torchao]")
    if missing is not None:
        raise SettingError("float8", f"{missing}.")
    if gpu is None or gpu.capability < float8.SINCE:
        name = "an A100, which is assumed," if gpu is None else gpu.name
        why = f"{name} computes no products in float8: type --gpu 4090, h100 or newer."
        raise SettingError("float8", why)
    layout = layouts.of(plan).name
    if layout not in ("single", "ddp") and (layout, plan.loop) != ("fsdp2", "plain"):
        why = "float8 is for one GPU, ddp, or fsdp2 in the plain loop: leave it out."
        raise SettingError("float8", why)


def _check_layout(plan: Plan, choice: Choice) -> None:
    with _name_setting("parallel"):
        layout = layouts.of(plan)
        layouts.chosen_rank(plan.rank, layouts.spread(plan).world)
        several = layout.name != layouts.SINGLE
        missing = layout.package and extras.lacking(
            f"--parallel {plan.parallel} needs", layout.package, f"torch-memcalc[{layout.package}]"
        )
        if missing:
            raise UsageError(f"{missing}.")
    if plan.compile and layout.package:
        why = "compile is not supported with DeepSpeed's engine yet: leave one of them out."
        raise SettingError("compile", why)
    if several and plan.loop != "plain":
        _check_accelerate(plan, layout)
    if several and plan.resume and (layout.name != "ddp" or plan.loop != "plain"):
        why = "--resume works in the plain loop with ddp only: leave it out."
        raise SettingError("resume", f"Over several GPUs, {why}")
    if several and plan.eval and (layout.package or plan.loop != "plain"):
        why = "--eval works in the plain loop with PyTorch's own layouts only: leave it out."
        raise SettingError("eval", f"Over several GPUs, {why}")
    # DeepSpeed's stages hand over a rank's share of all parameters as flat tensors, where states
    # of bitsandbytes follow from lengths alone.
    flat = layout.package == "deepspeed" and choice.row.package == "bitsandbytes"
    over = layouts.spread(plan)
    plain = layout.name in PLAIN_TENSORS or not (over.inside or over.sharding)
    known = choice.traceable or flat or plain
    if several and not known:
        reason = f"its kernels take no DTensors, which {layout.name} makes of parameters"
        if layout.package or choice.row.package != "bitsandbytes":
            reason = f"its code is not run here, so how {layout.name} divides its state is unknown"
        raise SettingError(
            "optim",
            f"--optim {plan.optim} with --parallel {plan.parallel}: {reason}. Choose an optimizer "
            "of PyTorch, or --parallel zero1.",
        )
    if plan.target == "cpu" and (layout.package or layout.name in ("pp", "ep", "cp")):
        raise SettingError("target", f"--parallel {plan.parallel} needs GPUs: leave --target out.")


def _check_accelerate(plan: Plan, layout: layouts.Layout) -> None:
    """Raise SettingError for a layout or setting that accelerate's loops do not support."""
    if layout.handed_over is None:
        raise SettingError(
            "loop",
            f"--loop {plan.loop} over several GPUs works with {', '.join(layouts.driven())}, "
            f"and the plan has {plan.parallel}: leave --loop out.",
        )
    given = dict(plan.parallel_args)
    refused = {
        "device_mesh": f"Under --loop {plan.loop} PyTorch itself finds out how many GPUs a machine "
        "has: HYBRID_SHARD works in the plain loop only, so leave --loop out.",
        "no_sync": f"Under --loop {plan.loop} accelerate decides when gradients are exchanged: "
        "no_sync works in the plain loop only, so leave one of them out.",
        "autocast": f"Under --loop {plan.loop} accelerate decides whether autocast runs: leave "
        "autocast out.",
    }
    if plan.loop == "trainer":
        view = "gradient_as_bucket_view"
        refused[view] = f"The Trainer hands no {view} on: leave it out."
    if why := next((why for name, why in refused.items() if name in given), None):
        raise SettingError("parallel_args", why)
    half = AUTOCAST_DTYPES.get(plan.precision)
    for name in layout.mixed:
        if given.get(name, half) != half:
            raise SettingError(
                "parallel_args",
                f"accelerate takes {name} from its mixed precision, which is {plan.precision}: "
                f"leave {name} out.",
            )


def _check_quant(plan: Plan, source: models.ModelSource) -> None:
    refusal = quant_refusal(plan, source) if plan.scheme is not None else None
    if refusal is not None:
        raise SettingError("quant", f"--quant {plan.quant}: {refusal}.")
    if plan.scheme is None and "load" in dict(plan.parallel_args):
        raise SettingError(
            "parallel_args",
            "load=cpu is for quantized bases, which are loaded before they are divided; others "
            "never lie whole on a GPU: leave it out, or add quant.",
        )
    already = checkpoint_refusal(plan, source)
    if already is not None:
        raise SettingError("quant", already)
    if plan.bnb_4bit_compute_dtype is not None and quantized.find_bnb_settings(source.config):
        why = f"The checkpoint of {source.name} says in what its layers compute: leave it out."
        raise SettingError("bnb_4bit_compute_dtype", why)


def _check_liger(source: models.ModelSource) -> None:
    if source.factory is not None:
        why = f"liger is for models of transformers, and {source.name} is a callable: leave it out."
        raise SettingError("liger", why)
    for name in liger.PACKAGES:
        missing = extras.lacking("--liger needs", name, "torch-memcalc[liger]")
        if missing is not None:
            raise SettingError("liger", f"{missing} on Linux, which Triton is made for.")


def checkpoint_refusal(plan: Plan, source: models.ModelSource) -> str | None:
    """Return why a plan's quantized checkpoint cannot be estimated, or None."""
    if source.config is None:
        return None
    gpu = gpus.find(plan.gpu) if plan.gpu is not None else None
    there = ASSUMED.capability if gpu is None else gpu.capability
    capability = None if plan.target == "cpu" else there
    return quantized.refusal(source.config, source.name, plan.quant, capability)


_WHOLE = ("ddp", "zero1")
"""Layouts that leave the weights whole on each GPU."""


def _layout_refusal(plan: Plan) -> str | None:
    """Return why the plan's layout cannot divide a base of bitsandbytes, or None if it can."""
    layout = layouts.spread(plan).layout
    if layout in (*_WHOLE, *layouts.SHARDED) and (layout in _WHOLE or plan.scheme != "int8"):
        return None
    engine = "DeepSpeed's engine is not simulated over a quantized base"
    reasons = {
        "tp": "transformers spreads no layers of bitsandbytes over tensor-parallel ranks",
        "zero2": engine,
        "zero3": engine,
    }
    if layout in layouts.SHARDED:
        return "FSDP has no type for weights in 8 bit: type --quant nf4-dq, or --parallel ddp"
    reason = reasons.get(layout, "a quantized base over such a mesh is not simulated")
    other = "fsdp2 or " if plan.scheme != "int8" else ""
    return f"{reason}: type --parallel {other}ddp"


def quant_refusal(plan: Plan, source: models.ModelSource) -> str | None:
    """Return why a plan's base model cannot be loaded quantized, or None."""
    if source.factory is not None:
        return f"it is for models that transformers loads, and {source.name} is a callable"
    several = layouts.spread(plan).world > 1
    if plan.scheme is not None and plan.scheme.startswith("torchao-"):
        refused = quantized.torchao_refusal(plan.scheme, trains=not plan.infers, several=several)
        return refused or extras.lacking("it needs", "torchao", "torch-memcalc[torchao]")
    if several and (refused := _layout_refusal(plan)) is not None:
        return refused
    already = quantized.find_bnb_settings(source.config)
    if already is not None and layouts.spread(plan).layout in layouts.SHARDED:
        refused = quantized.fsdp_refusal(already)
        if refused is not None:
            return refused
    return extras.lacking("it needs", "bitsandbytes")


def _check_parameters(plan: Plan, shipped: Inventory) -> None:
    """Raise SettingError if freeze patterns or LoRA targets match no parameter."""
    if plan.adapters is None:
        # Imported here: most plans freeze nothing.
        from memcalc.estimation.analytic import apply_precision

        with _name_setting("freeze"):
            apply_precision(shipped, plan)
        return
    targets = adapter(plan.adapters).target
    owners = {parameter.name.rpartition(".")[0] for parameter in shipped.parameters}
    if isinstance(targets, tuple) and not any(
        f".{owner}".endswith(f".{target}") for owner in owners for target in targets
    ):
        known = sorted({owner.rpartition(".")[2] for owner in owners} - {""})
        named = ", ".join(name for name in known if not name.isdigit())
        raise SettingError(
            "lora", f"{shipped.model} has no module called {' or '.join(targets)}: name of {named}."
        )


@contextlib.contextmanager
def _name_setting(setting: str) -> Iterator[None]:
    """Turn errors inside the block into ``SettingError`` of one setting."""
    try:
        yield
    except SettingError:
        raise
    except UsageError as error:
        raise SettingError(setting, str(error)) from None
    except (OSError, TypeError, ValueError) as error:
        # Names that no file system takes.
        raise SettingError(setting, f"{setting} is not understood: {error}.") from None
