"""Checkpoints that bitsandbytes quantized before they were saved: what their files hold.

The packages say it themselves. transformers puts bitsandbytes' layers into a model without memory,
bitsandbytes' operators say what becomes of each weight, and its layers what is saved of them. Read
in transformers 5.23 and bitsandbytes 0.50.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

import torch

from memcalc.catalog import models
from memcalc.catalog.quantised import settings_in
from memcalc.records.plan import Plan


def settings(plan: Plan) -> Mapping[str, Any] | None:
    """What bitsandbytes was told when the plan's checkpoint was made; ``None``: it was not."""
    return settings_in(models.find(plan.model).config)


def quantise(model: torch.nn.Module, told: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Quantize a model on the meta device, as its checkpoint was.

    Args:
        model: of transformers, not quantized; it is changed.
        told: the checkpoint's settings.
        dtype: of its weights before.
    """
    transformers = importlib.import_module("transformers")
    package = importlib.import_module("bitsandbytes")
    quantizer = transformers.quantizers.AutoHfQuantizer.from_config(dict(told), pre_quantized=False)
    quantizer.preprocess_model(model=model, device_map={"": "meta"})
    for module in model.modules():
        if not isinstance(module, package.nn.Linear4bit | package.nn.Linear8bitLt):
            continue
        if module.bias is not None:
            module.bias.data = module.bias.data.to(dtype)
        if isinstance(module, package.nn.Linear4bit):
            _in_4_bit(package, module, dtype)
        else:
            numbers, scales, _ = package.functional.int8_vectorwise_quant(
                module.weight.data.to(torch.float16)
            )
            module.weight = package.nn.Int8Params(numbers, requires_grad=False, SCB=scales)


def _in_4_bit(package: Any, module: torch.nn.Module, dtype: torch.dtype) -> None:
    weight: Any = module.weight
    made, state = package.functional.quantize_4bit(
        weight.data.to(dtype),
        compress_statistics=weight.compress_statistics,
        quant_type=weight.quant_type,
        quant_storage=weight.quant_storage,
    )
    if state.nested:
        # It is written down as a number.
        state.offset = torch.zeros(())
    module.weight = package.nn.Params4bit(
        made, quant_state=state, quant_type=weight.quant_type, bnb_quantized=True
    )


def saved_in(config: Mapping[str, Any] | None, otherwise: torch.dtype) -> torch.dtype:
    """The type that a checkpoint's weights had before they were quantized."""
    for part in (config or {}, (config or {}).get("text_config") or {}):
        named = part.get("dtype") or part.get("torch_dtype")
        found = getattr(torch, str(named).removeprefix("torch."), None)
        if isinstance(found, torch.dtype):
            return found
    return otherwise


def as_published(model: torch.nn.Module, plan: Plan, dtype: torch.dtype) -> torch.nn.Module:
    """A copy of a model without memory, quantized as its checkpoint is; or the model itself.

    Args:
        model: on the meta device.
        plan: names it.
        dtype: of the checkpoint, where its config does not say it.
    """
    told = settings(plan)
    if told is None:
        return model
    made = copy.deepcopy(model)
    quantise(made, told, saved_in(models.find(plan.model).config, dtype))
    return made


def held_once(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What ``state_dict`` says of a model, tied weights once, as checkpoints hold them."""
    known: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in known:
            known.add(id(tensor))
            found[name] = tensor.detach()
    return found
