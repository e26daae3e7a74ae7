"""Reads every parameter and buffer off a model, each storage once."""

import fnmatch

import torch
from msgspec.structs import replace

from memcalc.catalog.models import ModelSource
from memcalc.errors import UsageError
from memcalc.records.model import Inventory, Parameter
from memcalc.records.plan import Plan
from memcalc.workload import quantized
from memcalc.workload.job import PRECISIONS
from memcalc.workload.model import attach, build
from memcalc.workload.tasks import Head


def take(model: torch.nn.Module, name: str, task: str, freeze: tuple[str, ...] = ()) -> Inventory:
    """List a model's parameters and buffers; freeze those that match the patterns.

    Raises:
        UsageError: a pattern matches no parameter.
    """
    owners = _find_owners(model)
    for pattern in freeze:
        matched = [p for key, p in model.named_parameters() if fnmatch.fnmatch(key, pattern)]
        if not matched:
            raise UsageError(f"--freeze {pattern!r} matches no parameter: try '*embeddings*'.")
        for parameter in matched:
            parameter.requires_grad_(False)
    tensors: list[Parameter] = []
    for key, parameter in model.named_parameters():
        owner = owners[id(parameter)]
        described = _describe_tensor(key, quantized.packed_values(parameter), owner, buffer=False)
        original, trains = quantized.original_shape(parameter), parameter.requires_grad
        tensors.append(replace(described, original=original, trainable=trains))
        for part, constant in quantized.constants(parameter).items():
            described = _describe_tensor(f"{key}.{part}", constant, owner, buffer=False)
            tensors.append(replace(described, constant=True))
    tensors += [
        _describe_tensor(key, buffer, owners[id(buffer)], buffer=True)
        for key, buffer in model.named_buffers()
    ]
    return Inventory(model=name, task=task, head=type(model).__name__, tensors=tuple(tensors))


def whole(source: ModelSource, head: Head, plan: Plan | None = None) -> Inventory:
    """Build a model on the meta device and list its parameters and buffers.

    Raises:
        UsageError: the model cannot be built or adapted.
    """
    with torch.device("meta"):
        if plan is None or plan.adapters is None:
            model = build(source, head)
        else:
            model = build(source, head, dtype=PRECISIONS[plan.precision].weights)
            model = attach(model, plan.adapters, autocast=plan.autocast_adapter_dtype)
        return take(model, source.name, head.name)


def _find_owners(model: torch.nn.Module) -> dict[int, str]:
    """Return the class name of the module that owns each tensor, by the tensor's id.

    Optimizers look for ``nn.Embedding``, also where a model has its own class: all embeddings
    have that name here, except bitsandbytes' ``StableEmbedding``, which asks for 32 bit.
    """
    owners: dict[int, str] = {}
    for module in model.modules():
        name = type(module).__name__
        embeds = isinstance(module, torch.nn.Embedding)
        own = (*module._parameters.values(), *module._buffers.values())
        for tensor in (one for one in own if one is not None):
            if embeds:
                owners[id(tensor)] = name if name == "StableEmbedding" else "Embedding"
            owners.setdefault(id(tensor), name)
    return owners


def _describe_tensor(name: str, tensor: torch.Tensor, module: str, *, buffer: bool) -> Parameter:
    return Parameter(
        name=name,
        # DeepSpeed's third stage leaves nothing between uses, and says what there was.
        shape=tuple(getattr(tensor, "ds_shape", tensor.shape)),
        dtype=str(tensor.dtype).removeprefix("torch."),
        trainable=tensor.requires_grad,
        module=module,
        buffer=buffer,
    )
