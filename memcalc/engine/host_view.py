"""CPU tensors over the bytes of small tensors of the simulated GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import torch

FLOATS, WHOLES = 1 << 8, 1 << 20
"""Elements of the largest tensors that are worked out: of fractions, and of whole numbers."""


def over(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the bytes of one on the GPU."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    count = span(tensor)
    buffer = (ctypes.c_char * (count * tensor.element_size())).from_address(tensor.data_ptr())
    flat = torch.frombuffer(buffer, dtype=tensor.dtype, count=count)
    return flat.as_strided(tensor.shape, tensor.stride(), 0)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments, and in lists and dicts of them."""
    for one in values.values() if isinstance(values, dict) else values:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple | dict):
            yield from tensors_in(one)


def is_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Each has its numbers in one storage on the GPU or on the host."""
    return all(
        type(one) in (torch.Tensor, torch.nn.Parameter)
        and one.layout is torch.strided
        and one.device.type in ("cuda", "cpu")
        for one in tensors
    )


def fits(tensor: torch.Tensor, most: int) -> bool:
    """It is small enough to be worked out; ``most``: elements, of fractions."""
    count = tensor.numel()
    return count <= FLOATS or count <= (most if tensor.is_floating_point() else WHOLES)


def span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)
