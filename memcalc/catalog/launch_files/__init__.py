"""Configuration files of launchers, as settings of a plan.

A file is data: nothing in it is run, and none of its launcher's code. What it says of memory
becomes settings, what changes memory and has no place in a plan is named, and the rest is left.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memcalc.catalog import models
from memcalc.catalog.launch_files import accelerate, deepspeed
from memcalc.catalog.launch_files.records import Said, mapping
from memcalc.catalog.quantised import scheme_in
from memcalc.errors import MemcalcError, SettingError, UsageError
from memcalc.records.fields import FIELDS
from memcalc.records.names import PLAIN_TENSORS, TRAINER_OPTIM, ZERO_STAGES
from memcalc.records.values import USUAL_LORA, Scalar

__all__ = ["FILES", "Said", "many", "mapping", "read", "spelled_out"]
_SEVERAL = re.compile(
    r"([0-9]{1,6}) ?x ?(?![0-9]{1,2}$)(\S.*)|(.*[0-9].*?) ?x ?([0-9]{1,2})", re.IGNORECASE
)

_READERS: dict[str, Callable[[Mapping[str, Any], str, Mapping[str, Any]], Said]] = {
    "accelerate_config": accelerate.said,
    "deepspeed": deepspeed.said,
}
FILES = tuple(_READERS)
"""Settings that name a file and stand for what it says."""


def read(setting: str, path: str, given: Mapping[str, Any]) -> Said:
    """What the file of a setting in ``FILES`` says, beside other settings of a plan.

    Raises:
        SettingError: it cannot be read, or asks for what memcalc does not answer.
    """
    place = Path(os.path.expanduser(path))
    try:
        return _READERS[setting](mapping(place), path, given)
    except UsageError as error:
        raise SettingError(setting, str(error)) from None


def spelled_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the plan's own names, with what their files and their preset stand for.

    What a file says and what is said beside it must agree; a preset gives way to both.

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
    for name in FILES:
        path = left.pop(name, None)
        if path is not None:
            devices, gpu = left.get("devices"), left.get("gpu")
            if devices is not None:
                devices = FIELDS["devices"].check(devices)
            elif isinstance(gpu, str):
                devices = many(gpu)[0]
            beside = {"devices": devices, "optim": left.get("optim"), "loop": left.get("loop")}
            left = _joined(left, read(name, FIELDS[name].check(path), beside))
    return with_preset(_as_checkpoint(left))


def _as_checkpoint(settings: dict[str, Any]) -> dict[str, Any]:
    """How linear layers are quantized where the model's checkpoint is: nobody has to say it."""
    model = settings.get("model")
    if settings.get("quant") is not None or not isinstance(model, str) or not model:
        return settings
    try:
        scheme = scheme_in(models.find(model).config)
    except MemcalcError:
        # Whoever looks the model up is told.
        return settings
    return settings if scheme is None else {**settings, "quant": scheme}


def many(gpu: str) -> tuple[int | None, str]:
    """Read ``8xh100`` or ``h100x8``: how many, if it says so, and which."""
    found = _SEVERAL.fullmatch(gpu)
    return (int(found[1] or found[4]), found[2] or found[3]) if found is not None else (None, gpu)


def _joined(settings: dict[str, Any], said: Said) -> dict[str, Any]:
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


def _disagree(name: str, given: str, value: Any, said: Said) -> SettingError:
    return SettingError(name, f"{given}, and {said.file} says {value}: leave one of them out.")


_HALF: dict[str, Scalar] = {"precision": "bf16", "optim": "paged_adamw_8bit", "checkpointing": True}
PRESETS: dict[str, dict[str, Scalar]] = {
    "full": _HALF,
    "lora": {**_HALF, "lora": USUAL_LORA},
    "qlora": {**_HALF, "lora": USUAL_LORA, "quant": "nf4-dq"},
}
"""What people usually mean by a word, as settings of a plan."""
_OF_TRAINING = ("optim", "checkpointing")


def with_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what their preset stands for; what they say themselves is left as it is."""
    name = settings.get("preset")
    stands_for = PRESETS.get(name, {}) if isinstance(name, str) else {}
    if settings.get("generate") is not None or settings.get("inference"):
        # Once it is trained it is as it was loaded, and nothing of training is left.
        stands_for = {key: one for key, one in stands_for.items() if key not in _OF_TRAINING}
    elif stands_for and _makes_dtensors(settings.get("parallel")):
        stands_for = {**stands_for, "optim": TRAINER_OPTIM}
    return {**stands_for, **settings}


def _makes_dtensors(parallel: Any) -> bool:
    """Does a layout hand the optimizer tensors that kernels of 8-bit optimizers do not take?"""
    layout = str(parallel or "ddp").partition("=")[0]
    return layout not in PLAIN_TENSORS and layout not in ZERO_STAGES
