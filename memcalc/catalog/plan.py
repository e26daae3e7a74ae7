"""Makes a Plan from a user's settings, or raises an error that says what is wrong."""

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc.catalog import gpus
from memcalc.catalog.settings import computes_in_bf16, expand_settings, split_gpu_count
from memcalc.errors import SettingError, UsageError, unknown
from memcalc.files import shipped, untrusted_values
from memcalc.records.fields import FIELDS, changed_settings
from memcalc.records.names import FLASH_ATTN, TRAINER_OPTIM, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import NO_LORA, parse_input

_GENERATED = 256
"""Tokens that a serving engine generates by default."""


def make(settings: Mapping[str, Any]) -> Plan:
    """Make a plan from settings, with recipes, presets and GPU names resolved.

    A plan in the place of the model gives all its settings, and the others change it.

    Raises:
        UsageError: an unknown key, a value of the wrong type or out of range, a missing model, or
            settings that do not go together.
    """
    model = settings.get("model")
    if isinstance(model, Plan):
        settings = {**changed_settings(model), **settings, "model": model.model}
    checked: dict[str, Any] = {}
    for name, value in expand_settings(settings).items():
        if name not in FIELDS:
            raise unknown("setting", name, FIELDS, hint="see memcalc estimate --help.")
        if value is not None:
            checked[name] = FIELDS[name].check(value)
    if not checked.get("model") and "command" not in checked:
        raise UsageError("Which model? Name one: memcalc list models shows those that are bundled.")
    if checked.get("inputs"):
        checked["batch"] = _count_samples(checked)
    checked.pop("preset", None)
    if checked.get("loop") == "trainer" and not checked.get("optim_in_backward"):
        checked.setdefault("optim", TRAINER_OPTIM)
    if checked.get("engine"):
        # Engines serve what was saved in fp32 in 16 bits too.
        half = "bf16" if computes_in_bf16(checked.get("gpu")) else "fp16"
        checked.setdefault("precision", half)
        if not checked.get("inference"):
            # An engine only serves.
            checked.setdefault("generate", _GENERATED)
    if checked.get("parallel") in ZERO_STAGES:
        # DeepSpeed's ``bf16.enabled`` is the default.
        checked.setdefault("precision", "amp-bf16")
    plan = Plan(**_resolve_gpu(checked))
    wrong = disagreement(plan)
    if wrong is not None:
        raise UsageError(wrong)
    return plan


def _resolve_gpu(checked: dict[str, Any]) -> dict[str, Any]:
    """Return settings with ``8xh100`` or a machine's name split into ``gpu`` and ``devices``."""
    count, name = split_gpu_count(checked.get("gpu") or "")
    if count is not None:
        if checked.get("devices", count) != count:
            raise SettingError(
                "devices", f"devices = {checked['devices']} and gpu = {checked['gpu']!r} differ."
            )
        checked = {**checked, "devices": FIELDS["devices"].check(count), "gpu": name}
    with contextlib.suppress(UsageError):
        # Unknown names are refused when the plan is checked.
        taken = gpus.resolve(name)
        if taken.why:
            there = taken.count if checked.get("target") != "cpu" else None
            return {"devices": there or 1, **checked, "gpu": taken.gpu.name}
    return checked


def describe_gpu_name(settings: Mapping[str, Any]) -> str:
    """Return a sentence on the GPU that a name is taken as; empty if the name is unambiguous."""
    name = split_gpu_count(str(settings.get("gpu") or ""))[1]
    with contextlib.suppress(UsageError):
        taken = gpus.resolve(name)
        count = f"{taken.count} x " if (taken.count or 1) > 1 else ""
        return f"{name} is taken as {count}{taken.gpu.name}, {taken.why}" if taken.why else ""
    return ""


def _count_samples(checked: Mapping[str, Any]) -> int:
    """Return the batch size that ``inputs`` describe: the first size of the first shape.

    Raises:
        SettingError: an input is described twice, or ``batch`` contradicts them.
    """
    described = [parse_input(text) for text in checked["inputs"]]
    names = [name for name, _, _ in described]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingError("inputs", f"input describes {twice} twice: describe it once.")
    samples = next((shape[0] for _, _, shape in described if shape), 1)
    try:
        FIELDS["batch"].check(samples)
    except SettingError as error:
        raise SettingError("inputs", f"The first size of an input is its batch: {error}") from None
    if checked.get("batch", samples) != samples:
        raise SettingError(
            "batch",
            f"batch = {checked['batch']}, but the inputs describe {samples} samples: leave batch "
            "out, or describe inputs of that size.",
        )
    return samples


def load(path: Path) -> list[Plan]:
    """Read the plans of a suite file: ``[defaults]`` and a list of ``[[run]]``.

    A list under ``optim`` makes one run for each. A bare name that is no file here, such as
    ``community``, means a suite that memcalc ships.

    Raises:
        UsageError: the file cannot be read, holds no runs, or a run is not understood.
    """
    own = shipped.configs() / "suites" / f"{path}.toml"
    if path.parent == Path() and not os.path.exists(path) and os.path.isfile(own):
        path = own
    data = untrusted_values.toml(path)
    defaults, runs = data.get("defaults", {}), data.get("run", [])
    if not isinstance(runs, list) or not runs or not isinstance(defaults, dict):
        raise UsageError(f"{path} lists no runs: write [[run]] with a model for each.")
    plans: list[Plan] = []
    for number, run in enumerate(runs, start=1):
        try:
            if not isinstance(run, dict):
                raise UsageError("it is no table: write [[run]] and its keys below.")
            settings = expand_settings({**defaults, **run})
            wanted = settings.get("optim", "adamw")
            names = wanted if isinstance(wanted, list) else [wanted]
            plans += [make({**settings, "optim": name}) for name in names]
        except UsageError as error:
            raise UsageError(f"{path}, run {number}: {error}") from None
    return plans


STEPS = 3
"""Optimizer steps after which a command is stopped by default."""


def to_simulate(plan: Plan, options: str = "") -> str:
    """Return the ``memcalc simulate`` command line for a plan of a command."""
    typed = {
        "--gpu": plan.gpu,
        "--steps": None if plan.steps in (None, STEPS) else str(plan.steps),
        "--torch": plan.torch,
        "--alloc-conf": plan.alloc_conf,
        "--rank": None if plan.rank is None else str(plan.rank),
        "--python": plan.python,
    }
    words = [f"{name} {shlex.quote(value)} " for name, value in typed.items() if value]
    words += ["--weights "] if plan.weights else []
    return f"memcalc simulate {''.join(words)}{options}-- {plan.command}"


_ARGS_ALONE = "engine_args needs engine: name vllm or sglang."
_RELEASE_ALONE = "vllm names the release that --engine vllm starts: add --engine vllm."


def disagreement(plan: Plan) -> str | None:
    """Return a sentence if PyTorch cannot run these settings together, or None."""
    if plan.inputs and (plan.seq is not None or plan.padding is not None):
        name = "seq" if plan.seq is not None else "padding"
        return f"{name} is for batches that memcalc makes, and input describes them: leave one out."
    if plan.bnb_4bit_compute_dtype is not None and plan.scheme not in ("nf4", "nf4-dq", "fp4"):
        return "bnb_4bit_compute_dtype needs a base in 4 bit: add --quant nf4, or leave it out."
    if plan.vllm is not None and plan.engine != "vllm":
        return _RELEASE_ALONE
    if plan.infers:
        return _inference_disagreement(plan)
    if plan.engine_args:
        return _ARGS_ALONE
    if plan.scheme is not None and plan.lora == NO_LORA:
        return f"on a base in {plan.scheme} only adapters train: leave out lora none, or quant."
    if plan.cache != "dynamic" or plan.beams > 1:
        name = "cache" if plan.cache != "dynamic" else "beams"
        return f"{name} needs --generate: say how many tokens, such as --generate 256."
    if plan.scheme is None and plan.kbit_prepare is False:
        return "kbit_prepare needs a quantized base: add quant, or leave it out."
    if plan.checkpoint_every > 1 and not plan.checkpointing:
        return "checkpoint_every needs checkpointing: add --checkpointing."
    if plan.use_reentrant is not None and not plan.checkpointing:
        return "use_reentrant needs checkpointing: add --checkpointing, or leave it out."
    if plan.recompute != "all" and (not plan.checkpointing or plan.use_reentrant):
        return "recompute selective needs checkpointing with use_reentrant false: set both."
    if plan.offload_activations and plan.loop != "plain":
        return f"offload_activations is of the plain loop: leave it out, or loop {plan.loop}."
    if plan.adapters is None and not plan.autocast_adapter_dtype:
        return "autocast_adapter_dtype is of adapters: add lora, or leave it out."
    if plan.liger and plan.loss_chunks > 1:
        return "liger makes the loss in pieces of its own: leave out loss_chunks, or liger."
    if plan.liger and plan.target == "cpu":
        return "Liger's kernels are for GPUs: leave out liger, or target cpu."
    if plan.float8 is not None and (why := _float8_disagreement(plan)):
        return why
    if plan.compile and plan.target == "cpu":
        return "compile is supported on GPUs only: leave out compile, or target cpu."
    if plan.attention == FLASH_ATTN and plan.target == "cpu":
        return "flash-attn's kernels are for GPUs: leave out attention, or target cpu."
    return _device_disagreement(plan) or _in_backward_disagreement(plan)


def _float8_disagreement(plan: Plan) -> str | None:
    """Return a sentence if settings do not go with products in float8, or None."""
    if "fp16" in plan.precision:
        return f"float8 is beside bf16 or fp32: leave it out, or precision {plan.precision}."
    if plan.scheme is not None:
        return "float8 is of weights that are not quantized: leave out float8, or quant."
    return "float8 is for GPUs: leave out float8, or target cpu." if plan.target == "cpu" else None


def _in_backward_disagreement(plan: Plan) -> str | None:
    """Return a sentence if settings need gradients that ``optim_in_backward`` has freed."""
    against = {
        "grad_accum above 1": plan.grad_accum > 1,
        "max_grad_norm": plan.max_grad_norm is not None,
        "precision amp-fp16": plan.precision == "amp-fp16",
    }
    named = next((name for name, given in against.items() if given), None)
    if named is None or not plan.optim_in_backward:
        return None
    return (
        f"optim_in_backward does not go with {named}: gradients are used and freed one by "
        "one, before all of them are known."
    )


def _inference_disagreement(plan: Plan) -> str | None:
    """Return a sentence if a plan of inference has settings that do not go with it, or None."""
    asked = "generate" if plan.generate is not None else "inference"
    if plan.inference and plan.generate is not None:
        return "generate is inference already: leave inference out."
    if plan.inference and (plan.cache != "dynamic" or plan.beams > 1):
        return "inference is one forward pass without a cache: type --generate N for one."
    training = {
        "grad_accum": plan.grad_accum > 1,
        "checkpointing": plan.checkpointing,
        "offload_activations": plan.offload_activations,
        "loss_chunks": plan.loss_chunks > 1,
        "liger": plan.liger,
        "float8": plan.float8 is not None,
        "max_grad_norm": plan.max_grad_norm is not None,
        "optim_in_backward": plan.optim_in_backward,
        "resume": plan.resume,
        "eval": plan.eval is not None,
        "freeze": bool(plan.freeze),
        "kbit_prepare": not plan.kbit_prepare,
        "autocast_adapter_dtype": not plan.autocast_adapter_dtype,
        "keep_outputs": plan.keep_outputs is not None,
        "kv_cache": plan.kv_cache is not None,
        "optim_args": bool(plan.optim_args),
        f"loop {plan.loop}": plan.loop != "plain",
    }
    named = next((name for name, given in training.items() if given), None)
    if named is not None:
        return f"{asked} trains nothing: leave out {named}, or {asked}."
    if plan.compile:
        return f"compile is supported for training only: leave out compile, or {asked}."
    if plan.parallel is not None or (plan.devices > 1 and plan.engine != "vllm"):
        return f"{asked} works on one GPU only: leave out devices and parallel."
    if plan.generate is not None and plan.inputs:
        return "generate makes its prompts itself: leave out input."
    return _engine_disagreement(plan) or _device_disagreement(plan)


def _engine_disagreement(plan: Plan) -> str | None:
    """Return a sentence if settings do not go with an inference engine, or None."""
    if plan.engine is None:
        return _ARGS_ALONE if plan.engine_args else None
    if plan.gpu is None:
        return "an engine reserves a share of a GPU: name the GPU, such as --gpu a100-80gb."
    if "amp" in plan.precision:
        half = "fp16" if "fp16" in plan.precision else "bf16"
        return f"engines have no {plan.precision}: type --precision {half}."
    if plan.scheme is not None:
        return "engines with quantized weights are not supported yet: leave quant out."
    if plan.cache != "dynamic" or plan.beams > 1:
        return "engine keeps a cache of its own, and no beams: leave out cache and beams."
    return None


def _device_disagreement(plan: Plan) -> str | None:
    """Return a sentence if a CPU plan names a GPU, or None."""
    if plan.gpu is not None and plan.target == "cpu":
        return f"target cpu runs on no GPU: leave out gpu {plan.gpu}, or target cpu."
    return None
