"""The parts of a model that wrappers treat as one: the layers of its encoder and decoder."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.errors import UsageError
from memcalc.records.names import DTYPES


def blocks(model: torch.nn.Module, classes: str = "") -> list[torch.nn.Module]:
    """Return the model's repeated blocks (``_no_split_modules``, else its layer lists), in order.

    If it names none, they are the members of the model's lists of like modules. ``classes``: names
    of classes to return instead, with commas between them.

    Raises:
        UsageError: the model has neither, or no module of a class that is named.
    """
    names = {name.strip() for name in classes.split(",")} - {""}
    missing = names - {type(module).__name__ for module in model.modules()}
    if missing:
        raise UsageError(
            f"transformer_layer_cls_to_wrap = {classes}: {type(model).__name__} has no module of "
            f"the class {min(missing)}."
        )
    for module in model.modules():
        names |= set(() if classes else getattr(module, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    found = found or [layer for layers in _find_layer_lists(model) for layer in layers]
    inner = {child for block in found for child in block.modules() if child is not block}
    found = [block for block in found if block not in inner]
    if not found:
        raise UsageError(
            f"{type(model).__name__} does not say which of its layers must stay whole "
            "(_no_split_modules) and has no list of them, so it cannot be divided: choose "
            "--parallel ddp."
        )
    return found


def _find_layer_lists(model: torch.nn.Module) -> Iterator[torch.nn.ModuleList]:
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) > 1:
            alike = len({type(layer) for layer in module}) == 1
            if alike and all(any(True for _ in layer.parameters()) for layer in module):
                yield module


def to_empty(
    model: torch.nn.Module,
    device: Any,
    filler: Callable[[torch.nn.Module], Callable[[torch.nn.Module], None]],
) -> None:
    """Allocate a meta-device model's memory on a device, tie its weights and fill in values."""
    fill = filler(model)
    model.to_empty(device=device)
    tie = getattr(model, "tie_weights", None)
    if tie is not None:
        # transformers 5 keeps what is tied; read again from the config it may be more.
        tie(**({"recompute_mapping": False} if hasattr(model, "all_tied_weights_keys") else {}))
    fill(model)


def parse_dtype(name: Any) -> torch.dtype | None:
    """Return the dtype of a name such as ``bfloat16`` or ``bf16``; None for ``none``.

    Raises:
        UsageError: there is no such floating-point dtype.
    """
    if name is None or name == "none":
        return None
    dtype = getattr(torch, DTYPES.get(str(name), str(name)), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"{name!r} is not a dtype: write bfloat16, float16 or float32.")
    return dtype
