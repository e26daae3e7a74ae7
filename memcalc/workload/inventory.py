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
    """List a model's tensors; parameters matching ``freeze`` are frozen in the model too.

    Raises:
        UsageError: a pattern matches no parameter.
    """
    owners = _owners(model)
    for pattern in freeze:
        matched = [p for key, p in model.named_parameters() if fnmatch.fnmatch(key, pattern)]
        if not matched:
            raise UsageError(f"--freeze {pattern!r} matches no parameter: try '*embeddings*'.")
        for parameter in matched:
            parameter.requires_grad_(False)
    tensors: list[Parameter] = []
    for key, parameter in model.named_parameters():
        owner = owners[id(parameter)]
        described = _describe(key, quantized.packed(parameter), owner, buffer=False)
        original, trains = quantized.original(parameter), parameter.requires_grad
        tensors.append(replace(described, original=original, trainable=trains))
        for part, constant in quantized.constants(parameter).items():
            described = _describe(f"{key}.{part}", constant, owner, buffer=False)
            tensors.append(replace(described, constant=True))
    tensors += [
        _describe(key, buffer, owners[id(buffer)], buffer=True)
        for key, buffer in model.named_buffers()
    ]
    return Inventory(model=name, task=task, head=type(model).__name__, tensors=tuple(tensors))


def whole(source: ModelSource, head: Head, plan: Plan | None = None) -> Inventory:
    """The inventory of a model that is built on the meta device for it.

    Raises:
        UsageError: the model cannot be built or adapted.
    """
    with torch.device("meta"):
        if plan is None or plan.adapters is None:
            return take(build(source, head), source.name, head.name)
        model = build(source, head, dtype=PRECISIONS[plan.precision].weights)
        return take(
            attach(model, plan.adapters, autocast=plan.autocast_adapter_dtype),
            source.name,
            head.name,
        )


def _owners(model: torch.nn.Module) -> dict[int, str]:
    """The class that owns each tensor; of a tied one the embedding, which optimizers look for.

    They look for ``nn.Embedding`` whatever a model calls its own: all of them have that name here,
    but bitsandbytes' ``StableEmbedding``, which asks for 32 bit by itself.
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


def _describe(name: str, tensor: torch.Tensor, module: str, *, buffer: bool) -> Parameter:
    return Parameter(
        name=name,
        # DeepSpeed's third stage leaves nothing between uses, and says what there was.
        shape=tuple(getattr(tensor, "ds_shape", tensor.shape)),
        dtype=str(tensor.dtype).removeprefix("torch."),
        trainable=tensor.requires_grad,
        module=module,
        buffer=buffer,
    )
