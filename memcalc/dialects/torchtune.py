"""torchtune's YAML.

Source: torchtune 0.7.0 (bd2a0fc), ``recipes/*_finetune_*.py`` and ``recipes/configs``: weights,
gradients, adapters and optimizer states are in ``dtype``; the loss runs in eight pieces.
"""

import re
from collections.abc import Mapping
from typing import Any

from memcalc import registry
from memcalc.dialects.format import read_format
from memcalc.dialects.recipe import Keys, Recipe, optimizer
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
_OPTIMIZERS = {"fused": True, "foreach": True}
_ALONE = {"phi3": "mini", "phi4": "14b"}
"""Sizes of families that have one."""
_WITHOUT_BASE = ("0_5b", "3b")
"""Sizes of Qwen2.5 whose builders are not divided into base and instruct."""
_MODEL_KEYS = """
    _component_ lora_attn_modules apply_lora_to_mlp apply_lora_to_output lora_rank lora_alpha
    lora_dropout quantize_base
""".split()
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
    data = {str(key): _interpolate(value, data, 8) for key, value in data.items()}
    if "batch_size" not in data or any(key in data for key in _SERVES) or "optimizer" not in data:
        raise UsageError(f"{file} is a recipe of torchtune that trains no model: name another.")
    keys = Keys(data, file, NAME, read_format("torchtune"))
    name, kind, phi = _read_model(keys)
    quant = "nf4-dq" if kind == "qlora" or _read_part(keys, "model").get("quantize_base") else None
    optim, arguments = _read_optimizer(keys)
    devices = given.get("devices") or 1
    parts = keys.count("tensor_parallel_dim") or 1
    keys.get("tensor_parallel_plan")
    found: dict[str, Any] = {
        "model": name,
        "task": "causal-lm",
        "loop": "plain",
        "batch": keys.count("batch_size"),
        "grad_accum": keys.count("gradient_accumulation_steps"),
        "seq": _read_length(keys),
        "precision": _read_precision(keys),
        "checkpointing": keys.flag("enable_activation_checkpointing") or None,
        "optim": optim,
        "optim_args": arguments or None,
        "optim_in_backward": keys.flag("optimizer_in_bwd") or None,
        "max_grad_norm": _read_clipping(keys),
        "loss_chunks": _read_loss_chunks(keys),
        "compile": "default" if _is_compiled(keys) else None,
        "quant": quant,
        "kbit_prepare": None if quant is None else False,
        "lora": _read_lora(keys, phi=phi) if kind else None,
        "padding": False if _read_part(keys, "dataset").get("packed") else None,
    }
    if parts > 1:
        found |= {"parallel": f"tp={parts}", "devices": devices if devices > 1 else parts}
    elif devices > 1:
        found["parallel"] = "fsdp2"
    keys.unread.append("how torchtune's own layers differ from those of transformers")
    if kind:
        keys.unread.append("that adapters are in bf16, half of what is counted of them")
    return keys.recipe(found)


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


def _read_part(keys: Keys, key: str) -> dict[str, Any]:
    found = keys.get(key)
    return found if isinstance(found, dict) else {}


def _read_component(keys: Keys, key: str) -> str:
    found = _read_part(keys, key).get("_component_")
    if not isinstance(found, str):
        raise keys.error(key, "names no _component_", "correct it")
    return found


def _read_model(keys: Keys) -> tuple[str, str, bool]:
    """Return transformers' name of the model, ``lora``, ``qlora`` or "", and True for a phi."""
    component = _read_component(keys, "model")
    family, _, builder = component.removeprefix("torchtune.models.").partition(".")
    kind = next((one for one in ("qlora", "lora") if builder.startswith(f"{one}_")), "")
    size = builder.removeprefix(f"{kind}_" if kind else "").removeprefix(family).strip("_")
    size = size.replace("_instruct", "").replace("_base", "").replace("_", ".")
    families = keys.form.names["families"]
    if family not in families or not (re.fullmatch(r"[0-9.]+b", size) or size == "mini"):
        why = "is no model that memcalc knows in transformers"
        raise keys.error("model._component_", why, value=component)
    for key, value in _read_part(keys, "model").items():
        if key not in _MODEL_KEYS and value:
            raise keys.error(f"model.{key}", "has no place in an estimate", value=value)
    shown = size if family in _SMALL else size.upper()
    return families[family].format(shown), kind, family.startswith("phi")


def _read_lora(keys: Keys, *, phi: bool) -> str:
    told = _read_part(keys, "model")
    asked = told.get("lora_attn_modules") or []
    known, fused = keys.form.names["attention"], keys.form.names["fused"]
    if not isinstance(asked, list) or not set(asked) <= known.keys():
        raise keys.error("model", "has lora_attn_modules of other names", "correct them")
    names = [known[name] for name in asked]
    names += _MLP if told.get("apply_lora_to_mlp") else ()
    names += ["lm_head"] if told.get("apply_lora_to_output") else []
    if phi:
        names = list(dict.fromkeys(fused.get(name, name) for name in names))
    rank = told.get("lora_rank") or 8
    if not names or isinstance(rank, bool) or not isinstance(rank, int):
        raise keys.error("model", "has adapters of no module or rank", "correct them")
    return lora(keys, rank, names, told.get("lora_dropout"))


def _read_optimizer(keys: Keys) -> tuple[str | None, dict[str, Any]]:
    part = {**_read_part(keys, "optimizer")}
    name = str(part.pop("_component_", ""))
    kept = {key: value for key, value in part.items() if key in _OPTIMIZERS}
    named = keys.view({**keys.data, "optimizer": name})
    return optimizer(named, "plain", "optimizer"), kept


def _read_length(keys: Keys) -> int | None:
    told = _read_part(keys, "tokenizer").get("max_seq_len")
    return keys.view({"max_seq_len": told}).count("max_seq_len")


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
    part = _read_part(keys, "loss")
    name = str(part.get("_component_", "")).rpartition(".")[2]
    if name not in _LOSSES:
        raise keys.error("loss._component_", "is another loss", value=name or "nothing")
    if name == "CEWithChunkedOutputLoss":
        keys.unread.append("that logits are cast to fp32 in pieces")
    asked = part.get("num_output_chunks")
    return asked if isinstance(asked, int) and asked > 0 and _LOSSES[name] > 1 else _LOSSES[name]


def _is_compiled(keys: Keys) -> bool:
    told = keys.get("compile")
    return bool(told.get("model")) if isinstance(told, dict) else keys.flag("compile")


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as torchtune's keys (paths with dots), without what it cannot express."""
    dtype = {**_DTYPES, "tf32": "fp32"}.get(plan.precision)
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
        **{f"optimizer.{key}": one for key, one in plan.optim_args if key in _OPTIMIZERS},
        **part,
    }


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
