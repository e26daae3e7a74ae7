"""A model's forward on the meta device, which computes nothing, and the operators that it runs."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_TAKE_ONE_TYPE = {"convolution", "mm", "addmm", "bmm"}
"""Operators that refuse factors of two types."""


class OperatorLog(TorchDispatchMode):
    """A dispatch mode that records each operator that runs, with its tensors' dtypes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[tuple[str, set[torch.dtype]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtypes = {one.dtype for one in args if isinstance(one, torch.Tensor)}
        self.ran.append((func.overloadpacket.__name__, dtypes))
        return func(*args, **(kwargs or {}))


def forward_on_meta(
    model: torch.nn.Module, inputs: Mapping[str, Any], dtype: torch.dtype | None = None
) -> None:
    """Run a model's forward with its tensors replaced by meta tensors, to compute nothing.

    ``dtype``: of floating-point tensors in this run, if not their own.
    """
    state = {
        name: tensor.to("meta", dtype if tensor.is_floating_point() else None)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    with torch.no_grad():
        torch.func.functional_call(model, state, (), dict(inputs))


def casts_images(model: torch.nn.Module, batch: Mapping[str, Any]) -> bool:
    """Return True if a model's forward accepts fp32 images with weights of any dtype.

    Vision transformers cast them; convolutional models mostly take images in the dtype of their
    weights.
    """
    log = OperatorLog()
    with log, contextlib.suppress(Exception):
        forward_on_meta(model, batch)
    return not any(name in _TAKE_ONE_TYPE and len(dtypes) > 1 for name, dtypes in log.ran)
