"""On which of several GPUs arguments of an operator are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_aten = torch.ops.aten
_INDEXES = {
    *(_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default),
    _aten._index_put_impl_.default,
}
_ELSEWHERE = "indices should be either on cpu or on the same device as the indexed tensor ({})"


def first_device(args: Iterable[Any]) -> int | None:
    """The number of the first device among arguments, or of a tensor among them."""
    for arg in args:
        found: int | None = None
        if isinstance(arg, list | tuple):
            found = first_device(arg)
        elif isinstance(arg, torch.device | torch.Tensor):
            place = arg if isinstance(arg, torch.device) else arg.device
            found = place.index if place.type == "cuda" else None
        if found is not None:
            return found
    return None


def check_indices(func: Any, args: tuple[Any, ...]) -> None:
    """Fake tensors take indices that lie anywhere.

    Source: aten/src/ATen/TensorIndexing.h and native/IndexingUtils.h (2.13).

    Raises:
        RuntimeError: one lies on another GPU.
    """
    if func not in _INDEXES:
        return
    tensor, indices = args[:2]
    for index in indices:
        if index is not None and index.device.type != "cpu" and index.device != tensor.device:
            raise RuntimeError(_ELSEWHERE.format(tensor.device))
