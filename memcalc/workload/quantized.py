"""Models whose linear layers are loaded quantized, by transformers and peft themselves.

``from_pretrained(quantization_config=..., device_map={"": device})`` runs unchanged, on a model
that is built already and on weights that are made when they are read. Read in transformers 5.23,
peft 0.21, bitsandbytes 0.50 and torchao 0.18.
"""

import contextlib
import copy
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memcalc.catalog import models
from memcalc.catalog.quantized import BITSANDBYTES, TORCHAO, computed_in, settings_in
from memcalc.errors import UsageError
from memcalc.imports import line
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.workload import layouts
from memcalc.workload.job import PRECISIONS
from memcalc.workload.wrapped_tensors import parts

Make = Callable[[str, torch.Tensor], torch.Tensor]
"""Makes a checkpoint's tensor on the host, from its name and a tensor of its shape and dtype: one
on the meta device, or the tensor itself where its values are known."""
Checkpoint = Mapping[str, torch.Tensor]
"""Tensors by name, on the meta device; small ones whose values are known are on the host."""


def compute_dtype(plan: Plan) -> torch.dtype:
    """The dtype that quantized layers compute in and other weights are loaded in."""
    precision = PRECISIONS[plan.precision]
    return precision.autocast or precision.weights


def said_of_types(plan: Plan) -> str:
    """The same as a sentence for the answer."""
    dtype = str(compute_dtype(plan)).removeprefix("torch.")
    already = settings(plan)
    named = plan.bnb_4bit_compute_dtype if already is None else computed_in(already)
    if named in (None, dtype):
        return f"linear layers compute in {dtype}, and so is the model loaded"
    who = "you" if already is None else "the checkpoint"
    return (
        f"linear layers compute in {named}, as {who} say{'s' * (already is not None)} "
        f"(bnb_4bit_compute_dtype), and the model is loaded in {dtype}"
    )


def load(
    model: torch.nn.Module, checkpoint: Checkpoint, plan: Plan, device: str, make: Make
) -> torch.nn.Module:
    """Load a model quantized onto a device.

    Raises:
        UsageError: a package is missing, or refuses the model, or finds nothing to quantize.
    """
    # They warn about every cast, and about kernels that are missing.
    for package in ("bitsandbytes", "torchao"):
        logging.getLogger(package).setLevel(logging.ERROR)
    config: Any = copy.deepcopy(model.config)
    already = settings(plan)
    if already is not None:
        config.quantization_config = dict(already)
    with _quietly(importlib.import_module("transformers")):
        try:
            loaded: torch.nn.Module = type(model).from_pretrained.__func__(  # type: ignore[attr-defined]
                _AsBuilt(model),
                None,
                config=config,
                state_dict={name: _Slice(name, one, make) for name, one in checkpoint.items()},
                quantization_config=settings_of(plan) if already is None else None,
                device_map={"": device},
                dtype=compute_dtype(plan),
            )
        except ImportError as error:
            raise UsageError(f"--quant {plan.scheme} needs a package: {line(error)}.") from None
    if all(original(parameter) is None for parameter in loaded.parameters()):
        raise UsageError(
            f"--quant {plan.scheme} finds no layer to quantize in {type(model).__name__}, whose "
            "layers are not nn.Linear: leave --quant out."
        )
    return loaded


def settings_of(plan: Plan) -> Any:
    """What ``from_pretrained`` is told as ``quantization_config``."""
    transformers = importlib.import_module("transformers")
    if plan.scheme in TORCHAO:
        ours = importlib.import_module("torchao.quantization")
        return transformers.TorchAoConfig(getattr(ours, TORCHAO[plan.scheme])())
    settings = dict(BITSANDBYTES[plan.scheme or ""])
    if "load_in_4bit" in settings:
        settings["bnb_4bit_compute_dtype"] = plan.bnb_4bit_compute_dtype or compute_dtype(plan)
        if layouts.spread(plan).layout in layouts.SHARDED:
            # FSDP asks for a float type.
            settings["bnb_4bit_quant_storage"] = compute_dtype(plan)
    return transformers.BitsAndBytesConfig(**settings)


def prepare(model: torch.nn.Module, plan: Plan) -> None:
    """Run ``peft.prepare_model_for_kbit_training``, where the plan wants it."""
    if not plan.kbit_prepare:
        return
    given = {} if plan.use_reentrant is None else {"use_reentrant": plan.use_reentrant}
    importlib.import_module("peft").prepare_model_for_kbit_training(
        model,
        use_gradient_checkpointing=plan.checkpointing,
        gradient_checkpointing_kwargs=given,
    )


def packed(parameter: torch.Tensor) -> torch.Tensor:
    """A weight's values as they are in memory, without quantization scales."""
    inside = _of_torchao(parameter)
    return next(iter(inside.values())) if inside else parameter


def constants(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Quantization scales of a weight, by their names in checkpoints."""
    inside = _of_torchao(parameter)
    if inside:
        return dict(list(inside.items())[1:])
    scales = getattr(parameter, "SCB", None)
    if scales is not None:
        return {"SCB": scales}
    state = getattr(parameter, "quant_state", None)
    return {} if state is None else constants_in(state)


def constants_in(state: Any) -> dict[str, torch.Tensor]:
    """The same of a ``QuantState`` of bitsandbytes."""
    found = {"absmax": state.absmax, "quant_map": state.code}
    if state.nested:
        found["nested_absmax"] = state.state2.absmax
        found["nested_quant_map"] = state.state2.code
        found["nested_offset"] = state.offset
    return found


def original(parameter: torch.Tensor) -> tuple[int, ...] | None:
    """The shape of a weight before it was quantized; ``None``: it is not quantized."""
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        return tuple(state.shape)
    known = getattr(parameter, "SCB", None) is not None or _of_torchao(parameter)
    return tuple(parameter.shape) if known else None


def _of_torchao(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors in a weight of torchao: its values first, then their scales."""
    return parts(parameter) if type(parameter).__module__.split(".")[0] == "torchao" else {}


def described(inventory: Inventory) -> str:
    """A sentence: how many layers are quantized, in how many bytes, and what is not."""
    packed = [tensor for tensor in inventory.parameters if tensor.original is not None]
    held = sum(tensor.bytes for tensor in inventory.tensors if tensor.constant)
    held += sum(tensor.bytes for tensor in packed)
    kept: dict[str, None] = {}
    for tensor in inventory.parameters:
        *_, owner, _ = ("", *tensor.name.split("."))
        if tensor.original is None and "lora_" not in tensor.name:
            kept[f"{owner} in {tensor.dtype}"] = None
    each = held / max(1, sum(tensor.numel for tensor in packed))
    return (
        f"{len(packed)} linear layers are quantized ({each:.4f} bytes per weight with scales); "
        f"not quantized: {', '.join(kept)}"
    )


class _AsBuilt:
    """Takes the place of a model's class, and returns the model that is built already."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __call__(self, config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        # Attention kernels ask the config for the dtype that was loaded.
        for own, told in zip(_parts(self._model.config), _parts(config), strict=True):
            own.dtype = told.dtype
        return self._model

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self._model), name)


def _parts(config: Any) -> Iterator[Any]:
    """A config and those in it (transformers 5.23, ``modeling_utils.py``, ``_get_dtype``)."""
    yield config
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            yield part


class _Slice:
    """A tensor of a checkpoint that is made when it is read, like a slice of safetensors."""

    def __init__(self, name: str, like: torch.Tensor, make: Make) -> None:
        self._name, self._like, self._make = name, like, make

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._make(self._name, self._like)

    def is_floating_point(self) -> bool:
        return self._like.is_floating_point()


def written(model: torch.nn.Module, plan: Plan) -> Checkpoint:
    """Tensors of the plan's checkpoint: tied weights once, each expert separately."""
    made = as_published(model, plan, compute_dtype(plan))
    loading = importlib.import_module("transformers.core_model_loading")
    reverted: Checkpoint = loading.revert_weight_conversion(made, held_once(made))
    return reverted


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def settings(plan: Plan) -> Mapping[str, Any] | None:
    """What bitsandbytes was told when the plan's checkpoint was made; ``None``: it was not."""
    return settings_in(models.find(plan.model).config)


def quantize(model: torch.nn.Module, told: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Quantize a model of transformers on the meta device, as its checkpoint was."""
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
    """A copy of a model without memory, quantized as its checkpoint is; or the model itself."""
    told = settings(plan)
    if told is None:
        return model
    made = copy.deepcopy(model)
    quantize(made, told, saved_in(models.find(plan.model).config, dtype))
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
