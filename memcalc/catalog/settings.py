"""Merges a plan's settings with recipes, launchers' files and presets."""

import re
from collections.abc import Mapping
from typing import Any

from memcalc import dialects
from memcalc.catalog import gpus, models, peft_targets
from memcalc.catalog.quantized import find_scheme
from memcalc.dialects import FILES, Recipe
from memcalc.errors import MemcalcError, SettingError, UsageError
from memcalc.files import extras
from memcalc.records.fields import FIELDS
from memcalc.records.names import (
    FLASH_ATTN,
    PLAIN_TENSORS,
    TRAINER_OPTIM,
    WITH_ACCELERATE,
    ZERO_STAGES,
)
from memcalc.records.values import USUAL_LORA, Scalar

_SEVERAL = re.compile(
    r"([0-9]{1,6}) ?x ?(?![0-9]{1,2}$)(\S.*)|(.*[0-9].*?) ?x ?([0-9]{1,2})", re.IGNORECASE
)


def expand_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings with the recipe, launcher files and preset they name, as ``Plan`` fields.

    A launcher's file must agree with the given settings. Given settings override a recipe, and both
    override a preset.

    Raises:
        SettingError: a setting is given twice, settings do not agree, or memcalc does not support
            what a file asks for.
    """
    left: dict[str, Any] = {}
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        if name in left:
            raise SettingError(name, f"{name} is given twice: give it once.")
        left[name] = value
    model = left.get("model")
    if isinstance(model, str) and dialects.find(model) is not None:
        if left.get("recipe") is not None:
            raise SettingError("recipe", f"{model} is a recipe already: leave recipe out.")
        left["recipe"] = left.pop("model")
    recipe = left.pop("recipe", None)
    files = {name: left.pop(name, None) for name in FILES if name != "recipe"}
    for name, path in files.items():
        if path is not None:
            found = dialects.read(name, FIELDS[name].check(path), _settings_for_files(left))
            left = _merge_file(left, _drop_program_settings(found) if recipe is not None else found)
    if recipe is not None:
        path = FIELDS["recipe"].check(recipe)
        left = merge_recipe(dialects.read("recipe", path, _settings_for_files(left)), left)
    return _name_targets(apply_preset(_apply_checkpoint_quant(left)))


def _settings_for_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a file's reader depends on: devices, optim and loop."""
    devices, gpu = settings.get("devices"), settings.get("gpu")
    if devices is not None:
        devices = FIELDS["devices"].check(devices)
    elif isinstance(gpu, str):
        devices = split_gpu_count(gpu)[0]
    return {"devices": devices, "optim": settings.get("optim"), "loop": settings.get("loop")}


def _drop_program_settings(found: Recipe) -> Recipe:
    """Return a launcher's file without the settings that the recipe of its program has."""
    own = ("precision", "loop", "grad_accum", "optim", "batch", "max_grad_norm")
    kept = {key: one for key, one in found.settings.items() if key not in own}
    return Recipe(file=found.file, dialect=found.dialect, settings=kept, unread=found.unread)


_TRAINING_FIELDS = """
    loop optim optim_args grad_accum checkpointing liger loss_chunks max_grad_norm kbit_prepare
    float8 resume parallel parallel_args devices padding compile
""".split()


_OPTIONS = {"accelerate": "--accelerate-config", "DeepSpeed": "--deepspeed"}
"""Options of launchers' files, which name no model, by their formats."""
_SEQ = 512
"""Tokens of a sample by default."""


def merge_recipe(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's settings, overridden by given ones.

    Raises:
        SettingError: a value of the recipe is invalid in a plan, or it names no model.
    """
    typed = {key: one for key, one in given.items() if one is not None}
    base = dict(recipe.settings)
    unread = recipe.unread
    if base.get("attention") == FLASH_ATTN and not extras.can_import("flash_attn"):
        # It is compiled for GPUs, and seldom installed on machines that only plan.
        base["attention"] = "flash"
        unread = (*unread, "how flash-attn differs from PyTorch's own build of it")
    for name, value in base.items():
        try:
            FIELDS[name].check(value)
        except SettingError as error:
            raise SettingError("recipe", f"{recipe.file}: {error}") from None
    if typed.get("inference") or typed.get("generate"):
        base = {key: one for key, one in base.items() if key not in _TRAINING_FIELDS}
    typed = apply_preset({"parallel": base.get("parallel"), **typed})
    _drop_dependent(base, typed)
    for name in ("parallel_args", "optim_args"):
        if name in typed and name in base:
            typed[name] = {**base[name], **dict(FIELDS[name].check(typed[name]))}
    typed = {key: one for key, one in typed.items() if one is not None}
    joined, notes = simplify_layout({**base, **typed})
    if not joined.get("model"):
        raise SettingError(
            "recipe",
            f"{recipe.file} names no model: type MODEL "
            f"{_OPTIONS.get(recipe.dialect, '--recipe')} {recipe.file}.",
        )
    if recipe.loss_piece is not None and "loss_chunks" not in joined:
        tokens = FIELDS["batch"].check(joined.get("batch", 8)) * (joined.get("seq") or _SEQ)
        joined["loss_chunks"] = -(-tokens // recipe.loss_piece)
    unset = () if joined.get("seq") else (f"samples of {_SEQ} tokens: it names no length (--seq)",)
    joined["assumed"] = (*_note_recipe(recipe), *unset, *joined.get("assumed", ()))
    if missing := (*joined.get("unread", ()), *unread, *notes):
        joined["unread"] = missing
    return joined


def _drop_dependent(base: dict[str, Any], typed: Mapping[str, Any]) -> None:
    """Drop a recipe's settings that depend on one that is typed otherwise."""
    if typed.get("parallel") not in (None, base.get("parallel")):
        base.pop("parallel_args", None)
    if "optim" in typed:
        base.pop("optim_args", None)
    if not str(typed.get("quant", "nf4")).startswith(("nf4", "fp4")):
        base.pop("bnb_4bit_compute_dtype", None)
    for name, off, depends in (
        ("quant", "none", "kbit_prepare"),
        ("lora", "none", "autocast_adapter_dtype"),
        ("checkpointing", False, "use_reentrant"),
    ):
        if typed.get(name) == off:
            base.pop(depends, None)


def _note_recipe(recipe: Recipe) -> tuple[str, ...]:
    """Return a note that names a recipe's file, its format and the defaults it took."""
    left = f"; {recipe.dialect}'s own {', '.join(recipe.defaults)}" if recipe.defaults else ""
    return (f"{recipe.file} is read as a recipe of {recipe.dialect}{left}",)


def simplify_layout(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Replace a loop or layout from a file that memcalc does not support by the nearest it does.

    Returns:
        The new settings, and sentences on the differences.
    """
    found, devices = dict(settings), settings.get("devices") or 1
    several = devices > 1 or (split_gpu_count(str(settings.get("gpu") or ""))[0] or 1) > 1
    if found.get("parallel") == "ddp" and not several:
        # One process is not wrapped.
        del found["parallel"]
        found.pop("parallel_args", None)
    spread = "parallel" in found
    alone = ("one GPU (say how many with --devices)",) if spread and not several else ()
    if found.get("loop") != "trainer" or not (several or spread):
        return found, alone
    by_machine = "device_mesh" in dict(found.get("parallel_args") or ())
    if found.get("parallel", "ddp") in WITH_ACCELERATE and not by_machine:
        return found, alone
    del found["loop"]
    as_the_trainer = {"max_grad_norm": 1.0, "keep_outputs": False}
    note = "memcalc does not know the Trainer's loop with this layout: the plain loop is used"
    return {**as_the_trainer, **found}, (note, *alone)


def _apply_checkpoint_quant(settings: dict[str, Any]) -> dict[str, Any]:
    """Set ``quant`` to the scheme of the model's checkpoint if it is quantized."""
    model = settings.get("model")
    if settings.get("quant") is not None or not isinstance(model, str) or not model:
        return settings
    try:
        scheme = find_scheme(models.find(model).config)
    except MemcalcError:
        # The error is raised when the plan is checked.
        return settings
    return settings if scheme is None else {**settings, "quant": scheme}


def _name_targets(settings: dict[str, Any]) -> dict[str, Any]:
    """Replace ``target=default`` of ``lora`` by the modules that peft adapts by default."""
    adapters, model = settings.get("lora"), settings.get("model")
    if not isinstance(adapters, str) or "target=default" not in adapters:
        return settings
    config = models.find(model).config if isinstance(model, str) else None
    names = peft_targets.default_targets((config or {}).get("model_type"))
    if names is None:
        raise SettingError("lora", f"peft has no default modules for {model}: name them.")
    named = adapters.replace("target=default", f"target={'+'.join(names)}")
    return {**settings, "lora": named}


def split_gpu_count(gpu: str) -> tuple[int | None, str]:
    """Split ``8xh100`` or ``h100x8`` into the number of GPUs (None without one) and the GPU."""
    found = _SEVERAL.fullmatch(gpu)
    return (int(found[1] or found[4]), found[2] or found[3]) if found is not None else (None, gpu)


def _merge_file(settings: dict[str, Any], found: Recipe) -> dict[str, Any]:
    """Add a launcher file's settings; raise SettingError if one contradicts a given one."""
    joined = dict(settings)
    for name, value in found.settings.items():
        given = joined.get(name)
        # With a file of DeepSpeed, zero1 means the file's stage.
        if given is None or (given, value) == ("zero1", "deepspeed_zero1"):
            joined[name] = value
        elif FIELDS[name].is_table:
            own = dict(FIELDS[name].check(given))
            for key in own.keys() & value.keys():
                if own[key] != value[key]:
                    raise _make_conflict(name, f"{key} = {own[key]}", value[key], found)
            joined[name] = {**value, **own}
        elif FIELDS[name].check(given) != FIELDS[name].check(value):
            raise _make_conflict(name, f"{name} = {given}", value, found)
    if found.unread:
        joined["unread"] = (*joined.get("unread", ()), *found.unread)
    return joined


def _make_conflict(name: str, given: str, value: Any, found: Recipe) -> SettingError:
    return SettingError(name, f"{given}, and {found.file} says {value}: leave one of them out.")


_HALF: dict[str, Scalar] = {"precision": "bf16", "optim": "paged_adamw_8bit", "checkpointing": True}
PRESETS: dict[str, dict[str, Scalar]] = {
    "full": _HALF,
    "lora": {**_HALF, "lora": USUAL_LORA},
    "qlora": {**_HALF, "lora": USUAL_LORA, "quant": "nf4-dq"},
}
"""Settings of each preset."""
_TRAINING_ONLY = ("optim", "checkpointing")


def apply_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings of a preset and return all; given settings win."""
    name = settings.get("preset")
    preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
    if settings.get("generate") is not None or settings.get("inference"):
        # Inference has no settings of training.
        preset = {key: one for key, one in preset.items() if key not in _TRAINING_ONLY}
    elif preset and _makes_dtensors(settings.get("parallel")):
        preset = {**preset, "optim": TRAINER_OPTIM}
    if "precision" in preset and not computes_in_bf16(settings.get("gpu")):
        # Adapters stay in fp32; all weights in fp16 could not be scaled.
        preset = {**preset, "precision": "fp16" if "lora" in preset else "amp-fp16"}
    return {**preset, **settings}


def computes_in_bf16(gpu: Any) -> bool:
    """Return False if a GPU is older than Ampere; True for an unknown or missing one."""
    try:
        card = None if gpu is None else gpus.resolve(split_gpu_count(str(gpu))[1]).gpu
    except UsageError:
        # Unknown names are refused when the plan is made.
        return True
    return card is None or gpus.architectures()[card.capability].bf16


def _makes_dtensors(parallel: Any) -> bool:
    """Return True if a layout makes DTensors, which kernels of 8-bit optimizers do not accept."""
    layout = str(parallel or "ddp").partition("=")[0]
    return layout not in PLAIN_TENSORS and layout not in ZERO_STAGES
