"""Models whose linear layers are loaded quantized, by transformers and peft themselves.

``from_pretrained(quantization_config=..., device_map={"": device})`` runs unchanged, on a model
that is built already and on weights that are made when they are read. Read in transformers 5.23,
peft 0.21, bitsandbytes 0.50 and torchao 0.18.
"""

import contextlib
import copy
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from memcalc.catalog import models
from memcalc.catalog.quantized import BITSANDBYTES, TORCHAO, find_bnb_settings, read_compute_dtype
from memcalc.errors import UsageError
from memcalc.imports import line
from memcalc.records.model import Inventory
from memcalc.records.names import SHARDED
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
    """Return the dtype in which quantized layers compute and other weights are loaded."""
    precision = PRECISIONS[plan.precision]
    return precision.autocast or precision.weights


def describe_dtypes(plan: Plan) -> str:
    """Return a sentence on the dtypes in which quantized layers compute and others are loaded."""
    dtype = str(compute_dtype(plan)).removeprefix("torch.")
    already = checkpoint_settings(plan)
    named = plan.bnb_4bit_compute_dtype if already is None else read_compute_dtype(already)
    if named in (None, dtype):
        return f"the model is loaded in {dtype}, and its linear layers compute in it"
    who = "you say" if already is None else "the checkpoint says"
    return (
        f"linear layers compute in {named}, as {who} (bnb_4bit_compute_dtype), and the model is "
        f"loaded in {dtype}"
    )


def load(
    model: torch.nn.Module, checkpoint: Checkpoint, plan: Plan, device: str, make: Make
) -> torch.nn.Module:
    """Load a built model as quantized onto a device, by transformers' ``from_pretrained``.

    Raises:
        UsageError: a package is missing, or refuses the model, or finds nothing to quantize.
    """
    # They warn about every cast, and about kernels that are missing.
    for package in ("bitsandbytes", "torchao"):
        logging.getLogger(package).setLevel(logging.ERROR)
    config: Any = copy.deepcopy(model.config)
    already = checkpoint_settings(plan)
    if already is not None:
        config.quantization_config = dict(already)
    with _without_progress_bar(importlib.import_module("transformers")):
        try:
            loaded: torch.nn.Module = type(model).from_pretrained.__func__(  # type: ignore[attr-defined]
                _BuiltModel(model),
                None,
                config=config,
                state_dict={name: _Slice(name, one, make) for name, one in checkpoint.items()},
                quantization_config=make_config(plan, new_layers(model, plan))
                if already is None
                else None,
                device_map={"": device},
                dtype=compute_dtype(plan),
            )
        except ImportError as error:
            raise UsageError(f"--quant {plan.scheme} needs a package: {line(error)}.") from None
    if all(original_shape(parameter) is None for parameter in loaded.parameters()):
        raise UsageError(
            f"--quant {plan.scheme} finds no layer to quantize in {type(model).__name__}, whose "
            "layers are not nn.Linear: leave --quant out."
        )
    return loaded


def new_layers(model: Any, plan: Plan) -> list[str]:
    """Return the parts of a model that its checkpoint does not hold, such as a classifier.

    transformers 5.23 quantizes no weight that a checkpoint lacks; where it puts bitsandbytes's
    layer around one, the forward fails. People name such layers in ``llm_int8_skip_modules``.
    """
    saved = models.find(plan.model).was_saved_by(type(model).__name__)
    if saved or model.get_output_embeddings() is not None:
        return []
    return [name for name, _ in model.named_children() if name != model.base_model_prefix]


def make_config(plan: Plan, skipped: Sequence[str] = ()) -> Any:
    """Make the ``quantization_config`` of ``from_pretrained`` for the plan's scheme.

    ``skipped``: the parts of the model that bitsandbytes leaves as they are.
    """
    transformers = importlib.import_module("transformers")
    if plan.scheme in TORCHAO:
        package = importlib.import_module("torchao.quantization")
        return transformers.TorchAoConfig(getattr(package, TORCHAO[plan.scheme])())
    settings: dict[str, Any] = dict(BITSANDBYTES[plan.scheme or ""])
    if skipped:
        settings["llm_int8_skip_modules"] = list(skipped)
    if "load_in_4bit" in settings:
        settings["bnb_4bit_compute_dtype"] = plan.bnb_4bit_compute_dtype or compute_dtype(plan)
        if layouts.spread(plan).layout in SHARDED:
            # FSDP asks for a float type.
            settings["bnb_4bit_quant_storage"] = compute_dtype(plan)
    return transformers.BitsAndBytesConfig(**settings)


def prepare(model: torch.nn.Module, plan: Plan) -> None:
    """Run ``peft.prepare_model_for_kbit_training``, unless the plan turns it off."""
    if not plan.kbit_prepare:
        return
    given = {} if plan.use_reentrant is None else {"use_reentrant": plan.use_reentrant}
    importlib.import_module("peft").prepare_model_for_kbit_training(
        model,
        use_gradient_checkpointing=plan.checkpointing,
        gradient_checkpointing_kwargs=given,
    )


def packed_values(parameter: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a weight's packed quantized values, without scales."""
    return next(iter(_torchao_parts(parameter).values()), parameter)


def constants(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a quantized weight's scales and other constants, by their checkpoint names."""
    if inside := _torchao_parts(parameter):
        return dict(list(inside.items())[1:])
    if (scales := getattr(parameter, "SCB", None)) is not None:
        return {"SCB": scales}
    state = getattr(parameter, "quant_state", None)
    return {} if state is None else state_constants(state)


def state_constants(state: Any) -> dict[str, torch.Tensor]:
    """Return the scales and code maps in a bitsandbytes ``QuantState``, by name."""
    found = {"absmax": state.absmax, "quant_map": state.code}
    if state.nested:
        found["nested_absmax"] = state.state2.absmax
        found["nested_quant_map"] = state.state2.code
        found["nested_offset"] = state.offset
    return found


def original_shape(parameter: torch.Tensor) -> tuple[int, ...] | None:
    """Return the shape of a weight before it was quantized, or None if it is not quantized."""
    if (state := getattr(parameter, "quant_state", None)) is not None:
        return tuple(state.shape)
    known = getattr(parameter, "SCB", None) is not None or _torchao_parts(parameter)
    return tuple(parameter.shape) if known else None


def _torchao_parts(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors in a weight of torchao: its values first, then their scales."""
    return parts(parameter) if type(parameter).__module__.split(".")[0] == "torchao" else {}


def describe(inventory: Inventory) -> str:
    """Return a note on the quantized layers, their bytes per weight, and the other weights."""
    packed = [tensor for tensor in inventory.parameters if tensor.original is not None]
    scales = [tensor for tensor in inventory.tensors if tensor.constant]
    kept: dict[str, None] = {}
    for tensor in inventory.parameters:
        *_, owner, _ = ("", *tensor.name.split("."))
        if tensor.original is None and "lora_" not in tensor.name:
            kept[f"{owner} in {tensor.dtype}"] = None
    held = sum(tensor.bytes for tensor in (*packed, *scales))
    each = held / max(1, sum(tensor.numel for tensor in packed))
    return (
        f"{len(packed)} linear layers are quantized ({each:.4f} bytes per weight with scales); "
        f"not quantized: {', '.join(kept)}"
    )


class _BuiltModel:
    """A stand-in for a model's class that returns the model which is built already."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __call__(self, config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        # Attention kernels ask the config for the dtype that was loaded.
        for own, loaded in zip(
            _list_configs(self._model.config), _list_configs(config), strict=True
        ):
            own.dtype = loaded.dtype
        return self._model

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self._model), name)


def _list_configs(config: Any) -> Iterator[Any]:
    """Yield a config and its sub-configs (transformers 5.23, ``_get_dtype``)."""
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


def make_checkpoint(model: torch.nn.Module, plan: Plan) -> Checkpoint:
    """Return the tensors of the plan's checkpoint by name, as if read from its files."""
    if (settings := checkpoint_settings(plan)) is not None:
        model = copy.deepcopy(model)
        quantize(model, settings, _saved_dtype(models.find(plan.model).config, compute_dtype(plan)))
    loading = importlib.import_module("transformers.core_model_loading")
    new = tuple(f"{name}." for name in new_layers(model, plan))
    state = {k: one for k, one in state_without_ties(model).items() if not k.startswith(new)}
    reverted: Checkpoint = loading.revert_weight_conversion(model, state)
    return reverted


@contextlib.contextmanager
def _without_progress_bar(transformers: Any) -> Iterator[None]:
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def checkpoint_settings(plan: Plan) -> Mapping[str, Any] | None:
    """Return the bitsandbytes settings of the plan's checkpoint, or None."""
    return find_bnb_settings(models.find(plan.model).config)


def quantize(model: torch.nn.Module, settings: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Quantize a model on the meta device, by a checkpoint's bitsandbytes settings."""
    transformers = importlib.import_module("transformers")
    package = importlib.import_module("bitsandbytes")
    quantizer = transformers.quantizers.AutoHfQuantizer.from_config(
        dict(settings), pre_quantized=False
    )
    quantizer.preprocess_model(model=model, device_map={"": "meta"})
    for module in model.modules():
        if not isinstance(module, package.nn.Linear4bit | package.nn.Linear8bitLt):
            continue
        if module.bias is not None:
            module.bias.data = module.bias.data.to(dtype)
        if isinstance(module, package.nn.Linear4bit):
            _quantize_to_4_bit(package, module, dtype)
        else:
            numbers, scales, _ = package.functional.int8_vectorwise_quant(
                module.weight.data.to(torch.float16)
            )
            module.weight = package.nn.Int8Params(numbers, requires_grad=False, SCB=scales)


def _quantize_to_4_bit(package: Any, module: torch.nn.Module, dtype: torch.dtype) -> None:
    weight: Any = module.weight
    made, state = package.functional.quantize_4bit(
        weight.data.to(dtype),
        compress_statistics=weight.compress_statistics,
        quant_type=weight.quant_type,
        quant_storage=weight.quant_storage,
    )
    if state.nested:
        # Checkpoints hold it as a number.
        state.offset = torch.zeros(())
    module.weight = package.nn.Params4bit(
        made, quant_state=state, quant_type=weight.quant_type, bnb_quantized=True
    )


def _saved_dtype(config: Mapping[str, Any] | None, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype that a checkpoint's weights had before they were quantized."""
    for part in (config or {}, (config or {}).get("text_config") or {}):
        named = part.get("dtype") or part.get("torch_dtype")
        found = getattr(torch, str(named).removeprefix("torch."), None)
        if isinstance(found, torch.dtype):
            return found
    return otherwise


def state_without_ties(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's ``state_dict`` without the second names of tied weights."""
    first: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), (name, tensor.detach()))
    return dict(first.values())
