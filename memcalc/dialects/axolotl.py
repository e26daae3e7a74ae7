"""axolotl's YAML.

Source: axolotl 0.18.0 (067b021), ``utils/schemas``, ``utils/config/__init__.py``,
``loaders/model.py`` and ``loaders/adapter.py``: with ``bf16`` the weights themselves are loaded in
bfloat16, with ``fp16`` in float16, and a quantized base is prepared as peft does and cast back;
gradients are clipped at 1.0 by the Trainer.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import trainer
from memcalc.dialects.format import read_format
from memcalc.dialects.recipe import Keys, Recipe, flatten
from memcalc.dialects.weights import lora, write_quant
from memcalc.records.names import FLASH_ATTN, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

NAME = "axolotl"
_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
_OTHER_ATTENTION = ("xformers_attention", "flex_attention", "sage_attention", "s2_attention")
_KERNELS = ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy")
"""What Liger replaces by default, by the names of axolotl's plugin."""
_PIECE = 256
_FSDP = 1
"""The version of FSDP that accelerate takes where no variable of the shell says more."""
_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
_BNB = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
"""Settings of bitsandbytes that a plan can express."""
_HALVES = {"amp-bf16": True, "bf16+amp": True, "bf16": "full", "fp32": False, "tf32": False}
_PLUGINS = {
    "spectrum": "Spectrum",
    "kd": "distillation",
    "diffusion": "training by diffusion",
}


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has the keys of axolotl's YAML."""
    return "base_model" in data and ("micro_batch_size" in data or "datasets" in data)


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read axolotl's YAML as settings of a plan.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    keys = Keys(data, file, NAME, read_format("axolotl"))
    _check_task(keys)
    found = trainer.read_arguments(_select_trainer_keys(keys), given)
    found |= {
        "checkpointing": keys.get("gradient_checkpointing") not in (None, False) or None,
        "precision": _read_precision(keys),
        "attention": _read_attention(keys, found.get("attention")),
        "liger": _read_liger(keys),
        "loss_chunks": _read_loss_chunks(keys),
        "grad_accum": _read_accumulation(keys),
        "lora": _read_lora(keys),
    }
    _check_plugins(keys)
    flash = found["attention"] == FLASH_ATTN
    if found["lora"] is None and found["precision"] == "bf16+amp" and not flash:
        keys.unread.append("that embeddings and norms are trained in fp32")
    if keys.get("gradient_checkpointing") not in (None, True, False, "true"):
        raise keys.error("gradient_checkpointing", "keeps activations in host memory")
    return keys.recipe(found)


def _select_trainer_keys(keys: Keys) -> Keys:
    """Return the keys that mean the same in axolotl as in TrainingArguments."""
    other = ("bf16", "fp16", "tf32", "optim", "gradient_checkpointing", "use_cache",
             "resume_from_checkpoint", "use_cpu")  # fmt: skip
    data = {key: one for key, one in keys.data.items() if key not in other}
    version = keys.get("fsdp_version") or _FSDP
    if data.get("fsdp") or data.get("fsdp_config"):
        config = data.get("fsdp_config")
        data["fsdp_config"] = {
            "fsdp_version": version,
            **(config if isinstance(config, dict) else {}),
        }
    if isinstance(settings := keys.get("bnb_config_kwargs"), dict):
        if keys.data.get("load_in_4bit"):
            data |= flatten({"bnb_config_kwargs": settings})
        if unknown := [one for one in settings if one not in _BNB]:
            raise keys.error("bnb_config_kwargs", f"has {unknown[0]}, which may change memory")
    # Precision that the shards are gathered in.
    data |= {name: True for name in ("bf16", "fp16") if keys.data.get(name)}
    return keys.view(data)


def _check_task(keys: Keys) -> None:
    kind = keys.text("model_type", "type_of_model") or ""
    for name, task in (("SequenceClass", "sequence-classification"), ("TokenClass", "token-class")):
        if name in kind:
            raise keys.error("model_type", f"has another head ({task})", "name the task by --task")
    if "ImageText" in kind or "ConditionalGeneration" in kind:
        raise keys.error("model_type", "takes images")
    if keys.get("num_labels"):
        raise keys.error("num_labels", "has another head")


def _read_accumulation(keys: Keys) -> int | None:
    steps, whole = keys.count("gradient_accumulation_steps"), keys.count("batch_size")
    if steps is None and whole is not None:
        return max(1, whole // (keys.count("micro_batch_size") or 1))
    return steps


def _read_precision(keys: Keys) -> str:
    keys.get("bfloat16", "float16")
    halves = {name: keys.data.get(name) for name in ("bf16", "fp16", "bfloat16", "float16")}
    if not any(one is not None for one in halves.values()):
        halves["bf16"] = keys.view(keys.data, {"bf16": "auto"}).get("bf16")
    keys.get("float32", "fp16")
    keys.get("tf32")
    if halves["bf16"] or halves["bfloat16"]:
        # It loads the model in bf16, and tells the Trainer bf16=True unless it is "full".
        return "bf16" if halves["bf16"] == "full" else "bf16+amp"
    if halves["fp16"] or halves["float16"]:
        return "fp16"
    return "tf32" if keys.data.get("tf32") else "fp32"


def _read_attention(keys: Keys, named: str | None) -> str | None:
    for name in _OTHER_ATTENTION:
        if keys.flag(name):
            raise keys.error(name, "is an attention that memcalc does not run")
    asked = [ours for key, ours in _ATTENTION.items() if keys.flag(key)]
    return named or next(iter(asked), None)


def _read_liger(keys: Keys) -> bool | None:
    asked = [name for name in _KERNELS if keys.flag(f"liger_{name}")]
    others = [key for key in keys.data if key.startswith("liger_") and keys.flag(key)]
    if len(asked) == len(_KERNELS):
        return True
    if others:
        left = next(name for name in _KERNELS if name not in asked)
        raise keys.error(
            others[0], f"is one of Liger's kernels, and liger_{left} is not on: an estimate has all"
        )
    return None


def _read_loss_chunks(keys: Keys) -> int | None:
    plugins = str(keys.data.get("plugins"))
    if keys.data.get("cut_cross_entropy", "CutCrossEntropy" in plugins) is True:
        keys.unread.append("how Cut Cross-Entropy differs from a loss in pieces of 256 tokens")
        keys.loss_piece = _PIECE
        return None
    if not keys.flag("chunked_cross_entropy"):
        keys.get("chunked_cross_entropy_num_chunks")
        return None
    return keys.count("chunked_cross_entropy_num_chunks") or 8


def _read_lora(keys: Keys) -> str | None:
    kind = keys.text("adapter")
    rank, targets = keys.count("lora_r"), keys.get("lora_target_modules")
    linear, dropout = keys.flag("lora_target_linear"), keys.get("lora_dropout")
    if kind is None:
        return None
    if kind not in ("lora", "qlora"):
        raise keys.error("adapter", "is no adapter that memcalc trains")
    if not dropout and "lora_mlp_kernel" not in keys.data:
        keys.unread.append("fused kernels of adapters, which axolotl turns on where it can")
    if linear or targets in ("all-linear", None):
        if targets not in ("all-linear", None) and not linear:
            raise keys.error("lora_target_modules", "is no list of names", "correct it")
        targets = "all-linear"
    return lora(keys, rank, targets, dropout)


def _check_plugins(keys: Keys) -> None:
    for plugin in keys.get("plugins") or []:
        part = str(plugin).split(".")[2] if str(plugin).count(".") > 2 else str(plugin)
        if part in _PLUGINS and part not in keys.data:
            raise keys.error("plugins", f"has {part} ({_PLUGINS[part]}), which has no place in an "
                             "estimate")  # fmt: skip
        if part not in (*_PLUGINS, "cut_cross_entropy", "liger", "swanlab"):
            raise keys.error("plugins", f"has {part}, which may change memory")


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as axolotl's keys, without settings that axolotl cannot express."""
    named = trainer.optimizer_name(plan)
    return {
        "base_model": plan.model,
        **({"sequence_len": plan.seq} if plan.seq else {}),
        "micro_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        **({"bf16": _HALVES[plan.precision]} if plan.precision in _HALVES else {}),
        **({"fp16": True} if "fp16" in plan.precision else {}),
        **({"optimizer": named} if named else {}),
        **({"gradient_checkpointing": True} if plan.checkpointing else {}),
        **({"plugins": [_PLUGIN], **{f"liger_{name}": True for name in _KERNELS}}
           if plan.liger else {}),
        **_write_adapters(plan),
        **_write_layout(plan),
    }  # fmt: skip


def _write_adapters(plan: Plan) -> dict[str, Any]:
    if plan.adapters is None:
        return {}
    told = adapter(plan.adapters)
    loaded = write_quant(read_format("axolotl"), plan)
    return {
        "adapter": "qlora" if "load_in_4bit" in loaded else "lora",
        **loaded,
        "lora_r": told.r,
        "lora_alpha": int(told.alpha),
        **({"lora_dropout": told.dropout} if told.dropout else {}),
        **({"lora_target_linear": True} if told.target == "all-linear"
           else {"lora_target_modules": list(told.target)}),
    }  # fmt: skip


def _write_layout(plan: Plan) -> dict[str, Any]:
    if plan.devices == 1:
        return {}
    if plan.parallel in ZERO_STAGES:
        return {"deepspeed": f"deepspeed_configs/zero{ZERO_STAGES[plan.parallel]}.json"}
    if plan.parallel != "fsdp2":
        return {}
    told = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **dict(plan.parallel_args)}
    return {"fsdp_version": 2, "fsdp_config": told}
