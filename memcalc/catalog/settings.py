"""Settings of a plan, joined from recipes, launchers' files and presets."""

import re
from collections.abc import Mapping
from typing import Any

from memcalc import dialects
from memcalc.catalog import gpus, models, peft_targets
from memcalc.catalog.quantized import scheme_in
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


def spelled_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by the plan's own names, with what files and a preset add.

    A launcher's file and the settings given with it must agree; given settings win over a recipe,
    and over a preset all but a recipe.

    Raises:
        SettingError: one is given twice, they do not agree, or a file asks for what memcalc does
            not answer.
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
    beside = {name: left.pop(name, None) for name in FILES if name != "recipe"}
    for name, path in beside.items():
        if path is not None:
            said = dialects.read(name, FIELDS[name].check(path), _settings_for_files(left))
            left = _join(left, _without_program(said) if recipe is not None else said)
    if recipe is not None:
        path = FIELDS["recipe"].check(recipe)
        left = with_recipe(dialects.read("recipe", path, _settings_for_files(left)), left)
    return _with_targets(with_preset(_as_checkpoint(left)))


def _settings_for_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file has to know of the settings beside it."""
    devices, gpu = settings.get("devices"), settings.get("gpu")
    if devices is not None:
        devices = FIELDS["devices"].check(devices)
    elif isinstance(gpu, str):
        devices = many(gpu)[0]
    return {"devices": devices, "optim": settings.get("optim"), "loop": settings.get("loop")}


def _without_program(said: Recipe) -> Recipe:
    """Leave out of a launcher's file what a recipe says of the program that it launches."""
    own = ("precision", "loop", "grad_accum", "optim", "batch", "max_grad_norm")
    kept = {key: one for key, one in said.settings.items() if key not in own}
    return Recipe(file=said.file, dialect=said.dialect, settings=kept, unread=said.unread)


_OF_TRAINING = """
    loop optim optim_args grad_accum checkpointing liger loss_chunks max_grad_norm kbit_prepare
    resume parallel parallel_args devices padding compile
""".split()


_SEQ = 512
"""Tokens of a sample where nobody says more."""


def with_recipe(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's settings, with those that are given in their place.

    Raises:
        SettingError: the recipe has a value that no plan has, or names no model.
    """
    typed = {key: one for key, one in given.items() if one is not None}
    base = dict(recipe.settings)
    unread = recipe.unread
    if base.get("attention") == FLASH_ATTN and not extras.is_here("flash_attn"):
        # It is compiled for GPUs, and seldom installed where plans are made.
        base["attention"] = "flash"
        unread = (*unread, "how flash-attn differs from PyTorch's own build of it")
    for name, value in base.items():
        try:
            FIELDS[name].check(value)
        except SettingError as error:
            raise SettingError("recipe", f"{recipe.file}: {error}") from None
    if typed.get("inference") or typed.get("generate"):
        base = {key: one for key, one in base.items() if key not in _OF_TRAINING}
    if typed.get("parallel") not in (None, base.get("parallel")):
        base.pop("parallel_args", None)
    if "optim" in typed:
        base.pop("optim_args", None)
    typed = with_preset({"parallel": base.get("parallel"), **typed})
    for name in ("parallel_args", "optim_args"):
        if name in typed and name in base:
            typed[name] = {**base[name], **dict(FIELDS[name].check(typed[name]))}
    typed = {key: one for key, one in typed.items() if one is not None}
    if typed.get("quant") == "none":
        base.pop("kbit_prepare", None)
    joined, notes = driven({**base, **typed})
    if not joined.get("model"):
        raise SettingError(
            "recipe",
            f"{recipe.file} names no model: type MODEL --recipe {recipe.file}, or for a launcher's "
            f"file --accelerate-config or --deepspeed.",
        )
    if recipe.loss_piece is not None and "loss_chunks" not in joined:
        tokens = FIELDS["batch"].check(joined.get("batch", 8)) * (joined.get("seq") or _SEQ)
        joined["loss_chunks"] = -(-tokens // recipe.loss_piece)
    joined["assumed"] = (*_note_recipe(recipe), *joined.get("assumed", ()))
    if said := (*joined.get("unread", ()), *unread, *notes):
        joined["unread"] = said
    return joined


def _note_recipe(recipe: Recipe) -> tuple[str, ...]:
    left = f"; {recipe.dialect}'s own {', '.join(recipe.defaults)}" if recipe.defaults else ""
    return (f"{recipe.file} is read as a recipe of {recipe.dialect}{left}",)


def driven(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return settings as memcalc can answer them, where a file names a loop and a layout.

    Returns:
        The settings, and what that leaves out.
    """
    found, devices = dict(settings), settings.get("devices") or 1
    several = devices > 1 or (many(str(settings.get("gpu") or ""))[0] or 1) > 1
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


def _as_checkpoint(settings: dict[str, Any]) -> dict[str, Any]:
    """Say how linear layers are quantized where the model's checkpoint is."""
    model = settings.get("model")
    if settings.get("quant") is not None or not isinstance(model, str) or not model:
        return settings
    try:
        scheme = scheme_in(models.find(model).config)
    except MemcalcError:
        # Whoever looks the model up is told.
        return settings
    return settings if scheme is None else {**settings, "quant": scheme}


def _with_targets(settings: dict[str, Any]) -> dict[str, Any]:
    """Name the modules that peft adapts where adapters have its own default."""
    adapters, model = settings.get("lora"), settings.get("model")
    if not isinstance(adapters, str) or "target=default" not in adapters:
        return settings
    config = models.find(model).config if isinstance(model, str) else None
    names = peft_targets.of((config or {}).get("model_type"))
    if names is None:
        raise SettingError("lora", f"peft has no default modules for {model}: name them.")
    named = adapters.replace("target=default", f"target={'+'.join(names)}")
    return {**settings, "lora": named}


def many(gpu: str) -> tuple[int | None, str]:
    """Read ``8xh100`` or ``h100x8``: how many, if it says so, and which."""
    found = _SEVERAL.fullmatch(gpu)
    return (int(found[1] or found[4]), found[2] or found[3]) if found is not None else (None, gpu)


def _join(settings: dict[str, Any], said: Recipe) -> dict[str, Any]:
    joined = dict(settings)
    for name, value in said.settings.items():
        given = joined.get(name)
        # Beside a file of DeepSpeed, zero1 is the file's own.
        if given is None or (given, value) == ("zero1", "deepspeed_zero1"):
            joined[name] = value
        elif FIELDS[name].is_table:
            beside = dict(FIELDS[name].check(given))
            for key in beside.keys() & value.keys():
                if beside[key] != value[key]:
                    raise _disagree(name, f"{key} = {beside[key]}", value[key], said)
            joined[name] = {**value, **beside}
        elif FIELDS[name].check(given) != FIELDS[name].check(value):
            raise _disagree(name, f"{name} = {given}", value, said)
    if said.unread:
        joined["unread"] = (*joined.get("unread", ()), *said.unread)
    return joined


def _disagree(name: str, given: str, value: Any, said: Recipe) -> SettingError:
    return SettingError(name, f"{given}, and {said.file} says {value}: leave one of them out.")


_HALF: dict[str, Scalar] = {"precision": "bf16", "optim": "paged_adamw_8bit", "checkpointing": True}
PRESETS: dict[str, dict[str, Scalar]] = {
    "full": _HALF,
    "lora": {**_HALF, "lora": USUAL_LORA},
    "qlora": {**_HALF, "lora": USUAL_LORA, "quant": "nf4-dq"},
}
"""What people usually mean by a word, as settings of a plan."""
_NOT_OF_INFERENCE = ("optim", "checkpointing")


def with_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings of a preset; given settings win."""
    name = settings.get("preset")
    stands_for = PRESETS.get(name, {}) if isinstance(name, str) else {}
    if settings.get("generate") is not None or settings.get("inference"):
        # Once it is trained it is as it was loaded, and nothing of training is left.
        stands_for = {key: one for key, one in stands_for.items() if key not in _NOT_OF_INFERENCE}
    elif stands_for and _makes_dtensors(settings.get("parallel")):
        stands_for = {**stands_for, "optim": TRAINER_OPTIM}
    if "precision" in stands_for and not _computes_in_bf16(settings.get("gpu")):
        # Adapters stay in fp32; all weights in fp16 could not be scaled.
        stands_for = {**stands_for, "precision": "fp16" if "lora" in stands_for else "amp-fp16"}
    return {**stands_for, **settings}


def _computes_in_bf16(gpu: Any) -> bool:
    """Return False for a GPU before Ampere."""
    try:
        card = None if gpu is None else gpus.meant(many(str(gpu))[1]).gpu
    except UsageError:
        # Whoever makes the plan says that it is unknown.
        return True
    return card is None or gpus.architectures()[card.capability].bf16


def _makes_dtensors(parallel: Any) -> bool:
    """Tell whether a layout makes tensors that kernels of 8-bit optimizers do not take."""
    layout = str(parallel or "ddp").partition("=")[0]
    return layout not in PLAIN_TENSORS and layout not in ZERO_STAGES
