"""LLaMA-Factory's YAML or JSON, as ``llamafactory-cli train`` takes it.

Source: LLaMA-Factory ff6d4d1, ``hparams``, ``model/adapter.py``, ``model/patcher.py`` and
``model/model_utils``: the model is loaded in the half that it computes in, and what is trained of
it is cast to fp32, unless ``pure_bf16``.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import accelerate, trainer
from memcalc.dialects.format import read_format
from memcalc.dialects.recipe import Keys, Recipe
from memcalc.dialects.weights import write_lora, write_quant
from memcalc.errors import UsageError
from memcalc.records.names import ZERO_STAGES
from memcalc.records.plan import Plan

NAME = "LLaMA-Factory"
_FIRST = ("peft_config", "dist_config", "kernel_config", "model_class", "train_dataset")
"""Keys of its second format, which examples/v1 has."""


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has the keys of LLaMA-Factory's recipes."""
    asked = sum(key in data for key in read_format("llamafactory").marks.split())
    second = sum(key in data for key in _FIRST)
    return asked > 1 or second > 1 or ("model_name_or_path" in data and asked + second > 0)


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read a LLaMA-Factory recipe as settings of a plan.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    _check_kind(data, file)
    keys = Keys(data, file, NAME, read_format("llamafactory"))
    if data.get("stage") not in (None, "pt", "sft"):
        raise keys.error("stage", "trains on preferences or rewards, which an estimate does not")
    kind = keys.text("finetuning_type")
    if kind not in ("full", "lora"):
        raise keys.error("finetuning_type", "trains what a plan has no words for")
    found = trainer.read_arguments(keys, given)
    found["precision"] = _read_precision(keys, kind)
    found["checkpointing"] = not keys.flag("disable_gradient_checkpointing") or None
    again = keys.flag("use_reentrant_gc") or "use_reentrant_gc" not in data
    found["use_reentrant"] = again if found["checkpointing"] else None
    if data.get("stage") == "pt" and data.get("packing") is None:
        found["padding"] = False
    return keys.recipe(found)


def _check_kind(data: Mapping[str, Any], file: str) -> None:
    """Raise UsageError for a recipe that does not train, or of the second format."""
    if second := next((key for key in _FIRST if key in data), None):
        raise UsageError(
            f"{file} is a recipe of LLaMA-Factory's second format ({second}), which memcalc "
            f"does not read: run it by memcalc simulate -- llamafactory-cli train {file}."
        )
    trains = data.get("do_train")
    other = data.get("do_predict") or not {"stage", "output_dir"} & data.keys()
    if trains is False or (trains is None and other):
        raise UsageError(f"{file} is a recipe that trains nothing: add do_train: true.")


def _read_precision(keys: Keys, kind: str) -> str:
    half = next((name for name in ("bf16", "fp16") if keys.flag(name)), None)
    if keys.flag("pure_bf16"):
        return "bf16"
    if half is None:
        return "fp32" if kind == "full" else "bf16"
    if half == "fp16" and kind == "lora":
        keys.unread.append(trainer.OVER_FP16)
        return "fp16"
    return f"amp-{half}" if kind == "full" else "bf16+amp"


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as LLaMA-Factory's keys, without settings it cannot express."""
    form = read_format("llamafactory")
    named, half = trainer.optimizer_name(plan), accelerate.half_precision(plan)
    adapters = write_lora(form, plan)
    if isinstance(adapters.get("lora_target"), list):
        adapters["lora_target"] = ",".join(adapters["lora_target"])
    pure = plan.precision == "bf16"
    return {
        "model_name_or_path": plan.model,
        "stage": "sft",
        "do_train": True,
        **adapters,
        **write_quant(form, plan),
        **({"cutoff_len": plan.seq} if plan.seq else {}),
        "per_device_train_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        **({"pure_bf16": True} if pure else {half: True} if "amp" in plan.precision else {}),
        **({} if plan.checkpointing else {"disable_gradient_checkpointing": True}),
        **({"enable_liger_kernel": True} if plan.liger else {}),
        **({"optim": named} if named else {}),
        **({"deepspeed": f"examples/deepspeed/ds_z{ZERO_STAGES[plan.parallel]}_config.json"}
           if plan.devices > 1 and plan.parallel in ZERO_STAGES else {}),
    }  # fmt: skip
