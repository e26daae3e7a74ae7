"""torchtune's YAML.

Source: torchtune 0.7.0 (bd2a0fc), ``recipes/*_finetune_*.py`` and ``recipes/configs``: weights,
gradients, adapters and optimizer states are in ``dtype``; the loss runs in eight pieces.
"""

import re
from collections.abc import Mapping
from typing import Any

from memcalc import registry
from memcalc.dialects.format import read_format
from memcalc.dialects.recipe import Keys, Recipe, flatten, optimizer, select_arguments
from memcalc.dialects.weights import lora
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

NAME = "torchtune"
_SMALL = ("llama2", "gemma", "gemma2")
"""Families whose names have the size in small letters."""
_MLP = ("gate_proj", "up_proj", "down_proj")
_DTYPES = {"bf16": "bf16", "fp32": "fp32"}
_LOSSES = {
    "LinearCrossEntropyLoss": 8,
    "CEWithChunkedOutputLoss": 1,
    "CrossEntropyLoss": 1,
}
_ALONE = {"phi3": "mini", "phi4": "14b"}
"""Sizes of families that have one."""
_WITHOUT_BASE = ("0_5b", "3b")
"""Sizes of Qwen2.5 whose builders are not divided into base and instruct."""
_SERVES = ("prompt", "tasks", "temperature", "max_new_tokens", "inference")


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has components of torchtune."""
    parts = [one for one in data.values() if isinstance(one, dict)]
    return any(str(part.get("_component_", "")).startswith("torchtune.") for part in parts)


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read torchtune's YAML as settings of a plan.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    if "batch_size" not in data or any(key in data for key in _SERVES) or "optimizer" not in data:
        raise UsageError(f"{file} is a recipe of torchtune that trains no model: name another.")
    data = {str(key): _interpolate(value, data, 8) for key, value in data.items()}
    keys = Keys(flatten(data), file, NAME, read_format("torchtune"))
    name, kind, phi = _read_model(keys)
    quant = "nf4-dq" if kind == "qlora" or keys.flag("model.quantize_base") else None
    found: dict[str, Any] = {
        "model": name,
        "task": "causal-lm",
        "loop": "plain",
        "batch": keys.count("batch_size"),
        "grad_accum": keys.count("gradient_accumulation_steps"),
        "seq": keys.count("tokenizer.max_seq_len"),
        "precision": _read_precision(keys),
        "checkpointing": keys.flag("enable_activation_checkpointing") or None,
        **_read_optimizer(keys),
        "optim_in_backward": keys.flag("optimizer_in_bwd") or None,
        "max_grad_norm": _read_clipping(keys),
        "loss_chunks": _read_loss_chunks(keys),
        "compile": "default" if keys.flag("compile", "compile.model") else None,
        "quant": quant,
        "kbit_prepare": None if quant is None else False,
        "lora": _read_lora(keys, phi=phi) if kind else None,
        "padding": False if keys.flag("dataset.packed") else None,
        **_read_layout(keys, given.get("devices") or 1),
    }
    keys.unread.append("how torchtune's own layers differ from those of transformers")
    if kind and quant is None:
        found["autocast_adapter_dtype"] = False
    elif kind:
        keys.unread.append("that adapters are in bf16, half of what is counted of them")
    return keys.recipe(found)


def _read_layout(keys: Keys, devices: int) -> dict[str, Any]:
    """Return the parallel layout and its arguments; recipes for one device ignore these keys."""
    parts = keys.count("tensor_parallel_dim") or 1
    arguments: dict[str, Any] = {}
    if keys.flag("fsdp_cpu_offload"):
        arguments["offload"] = "cpu"
    if not keys.flag("fsdp_reshard_after_forward", default=True):
        arguments["reshard_after_forward"] = False
    own_units = keys.texts("custom_sharded_layers")
    if parts == devices == 1:
        return {}
    if own_units:
        keys.unread.append(f"that FSDP has units of their own for {' and '.join(own_units)}")
    return {
        "parallel": f"tp={parts}" if parts > 1 else "fsdp2",
        "parallel_args": arguments or None,
        "devices": devices if devices > 1 else parts,
    }


def _interpolate(value: Any, data: Mapping[str, Any], depth: int) -> Any:
    """Return a value with ``${name}`` replaced by the table's values, as OmegaConf does."""
    if depth == 0:
        return value
    if isinstance(value, dict):
        return {key: _interpolate(one, data, depth - 1) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    whole = re.fullmatch(r"\$\{([\w.]+)\}", value)
    if whole is not None:
        return _interpolate(_get_path(data, whole[1]), data, depth - 1)
    return re.sub(r"\$\{([\w.]+)\}", lambda found: str(_get_path(data, found[1]))[:200], value)


def _get_path(data: Any, path: str) -> Any:
    for name in path.split("."):
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _read_model(keys: Keys) -> tuple[str, str, bool]:
    """Return transformers' name of the model, ``lora``, ``qlora`` or "", and True for a phi."""
    component = keys.text("model._component_") or ""
    family, _, builder = component.removeprefix("torchtune.models.").partition(".")
    kind = next((one for one in ("qlora", "lora") if builder.startswith(f"{one}_")), "")
    size = builder.removeprefix(f"{kind}_" if kind else "").removeprefix(family).strip("_")
    size = size.replace("_instruct", "").replace("_base", "").replace("_", ".")
    families = keys.form.names["families"]
    if family not in families or not (re.fullmatch(r"[0-9.]+b", size) or size == "mini"):
        raise keys.error("model._component_", "is no model that memcalc knows in transformers")
    shown = size if family in _SMALL else size.upper()
    return families[family].format(shown), kind, family.startswith("phi")


def _read_lora(keys: Keys, *, phi: bool) -> str:
    asked = keys.texts("model.lora_attn_modules")
    known, fused = keys.form.names["attention"], keys.form.names["fused"]
    if not set(asked) <= known.keys():
        raise keys.error("model.lora_attn_modules", "has other names", "correct them")
    names = [known[name] for name in asked]
    names += _MLP if keys.flag("model.apply_lora_to_mlp") else ()
    names += ["lm_head"] if keys.flag("model.apply_lora_to_output") else []
    if phi:
        names = list(dict.fromkeys(fused.get(name, name) for name in names))
    if not names:
        raise keys.error("model.lora_attn_modules", "adapts no module", "name one")
    return lora(keys, keys.count("model.lora_rank"), names, keys.get("model.lora_dropout"))


def _read_optimizer(keys: Keys) -> dict[str, Any]:
    name = optimizer(keys, "plain", "optimizer._component_")
    if name is None:
        raise keys.error("optimizer._component_", "names no optimizer", "correct it")
    given = [one for one in keys.data if one.startswith("optimizer.")]
    pairs = {one.partition(".")[2]: keys.get(one) for one in given}
    del pairs["_component_"]
    told = select_arguments(keys, "optimizer", name, "plain", pairs)
    return {"optim": name, "optim_args": told or None}


def _read_precision(keys: Keys) -> str:
    named = keys.text("dtype") or "bf16"
    if named not in _DTYPES:
        raise keys.error("dtype", "is no type that torchtune trains in", "write bf16 or fp32")
    return _DTYPES[named]


def _read_clipping(keys: Keys) -> float | None:
    norm = keys.get("clip_grad_norm")
    if norm is None or (isinstance(norm, int | float) and not isinstance(norm, bool)):
        return None if norm is None else float(norm)
    raise keys.error("clip_grad_norm", "is no number", "correct it")


def _read_loss_chunks(keys: Keys) -> int | None:
    name = (keys.text("loss._component_") or "").rpartition(".")[2]
    asked = keys.count("loss.num_output_chunks")
    if name not in _LOSSES:
        raise keys.error("loss._component_", "is another loss", value=name or "nothing")
    if name == "CEWithChunkedOutputLoss":
        keys.unread.append("that logits are cast to fp32 in pieces")
    return asked or _LOSSES[name] if _LOSSES[name] > 1 else 1


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as torchtune's keys (paths with dots), without what it cannot express."""
    dtype = {**_DTYPES, "tf32": "fp32"}.get(plan.precision)
    options = dict(plan.parallel_args)
    part = dict.fromkeys(("loss._component_", "loss.num_output_chunks"))
    part["loss._component_"] = "torch.nn.CrossEntropyLoss"
    if plan.loss_chunks > 1:
        part["loss._component_"] = "torchtune.modules.loss.LinearCrossEntropyLoss"
        part["loss.num_output_chunks"] = plan.loss_chunks
    return {
        **_write_model(plan),
        **({"tokenizer.max_seq_len": plan.seq} if plan.seq else {}),
        "batch_size": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        **({"dtype": dtype} if dtype is not None else {}),
        "enable_activation_checkpointing": plan.checkpointing,
        "optimizer_in_bwd": plan.optim_in_backward,
        "clip_grad_norm": plan.max_grad_norm,
        "compile": plan.compile is not None,
        "optimizer._component_": registry.of(plan).row.implementation,
        **{f"optimizer.{key}": one for key, one in plan.optim_args},
        **part,
        **({"fsdp_cpu_offload": True} if options.get("offload") == "cpu" else {}),
        **({"fsdp_reshard_after_forward": False}
           if options.get("reshard_after_forward") is False else {}),
    }  # fmt: skip


def _write_model(plan: Plan) -> dict[str, Any]:
    form = read_format("torchtune")
    found: dict[str, Any] = {}
    for family, name in form.names["families"].items():
        size = re.fullmatch(re.escape(name).replace(r"\{\}", r"([\d.]+b|mini)"), plan.model, re.I)
        if size is not None:
            own = (size[1] if size.groups() else _ALONE[family]).lower().replace(".", "_")
            base = "_base" if family == "qwen2_5" and own not in _WITHOUT_BASE else ""
            kind = "lora_" if plan.adapters is not None else ""
            found["model._component_"] = f"torchtune.models.{family}.{kind}{family}_{own}{base}"
    if plan.adapters is None:
        return found
    told = adapter(plan.adapters)
    ours = {theirs: one for one, theirs in form.names["attention"].items()}
    named = [*ours, *_MLP] if isinstance(told.target, str) else told.target
    return {
        **found,
        "model.lora_attn_modules": [ours[one] for one in named if one in ours],
        "model.apply_lora_to_mlp": all(one in named for one in _MLP),
        "model.apply_lora_to_output": "lm_head" in named,
        "model.lora_rank": told.r,
        "model.lora_alpha": told.alpha,
        "model.lora_dropout": told.dropout,
        **({"model.quantize_base": True} if plan.scheme == "nf4-dq" else {}),
    }
