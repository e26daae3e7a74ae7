"""Images of synthetic batches: whether a model casts them to the type of its weights."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memcalc.workload.model import forward_on_meta

_TAKE_ONE_TYPE = {"convolution", "mm", "addmm", "bmm"}
"""Operators that refuse factors of two types."""


class _Mixed(TorchDispatchMode):
    """Whether an operator was given two types that no kernel takes together."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _TAKE_ONE_TYPE:
            tensors = [one for one in args if isinstance(one, torch.Tensor)]
            self.found |= len({tensor.dtype for tensor in tensors}) > 1
        return func(*args, **(kwargs or {}))


def casts_images(model: torch.nn.Module, batch: Mapping[str, Any]) -> bool:
    """Whether a model takes fp32 images where autocast is off.

    Vision transformers cast them; convolutional models mostly take images in the type of their
    weights. The forward tells, over a batch on the meta device with fp32 images.
    """
    mixed = _Mixed()  # type: ignore[no-untyped-call]
    with mixed, contextlib.suppress(Exception):
        forward_on_meta(model, batch)
    return not mixed.found
