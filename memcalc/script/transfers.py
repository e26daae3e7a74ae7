"""What PyTorch allocates to copy between host and device.

Source: aten/src/ATen/native/TensorConversions.cpp, ``_to_copy``, and
aten/src/ATen/native/cuda/Copy.cu, ``copy_requires_temporaries`` and ``copy_kernel_cuda`` (2.11
and 2.13). Host memory is not followed.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.trace.scratch.shapes import is_dense

WORTH_READING = 1 << 20
"""Elements of a tensor whose values are worked out when it is copied to the host."""


def like(
    tensor: torch.Tensor, dtype: torch.dtype, layout: Any, device: str = "cuda"
) -> torch.Tensor:
    """The tensor that a copy of this one is made into; one of the host is ``meta`` here."""
    place: dict[str, Any] = {"dtype": dtype, "device": device}
    if layout in (None, torch.preserve_format):
        if is_dense(tensor):
            return torch.empty_strided(tensor.shape, tensor.stride(), **place)
        return torch.empty_like(
            torch.empty_strided(tensor.shape, tensor.stride(), device="meta"), **place
        )
    return torch.empty(tensor.shape, memory_format=layout, **place)


def staging(target: torch.Tensor, source: torch.Tensor, *, blocking: bool) -> None:
    """Take and give back what lies on the device between one and the other."""
    alike = target.dtype is source.dtype
    if alike and target.is_contiguous() and source.is_contiguous():
        return
    if alike and target.stride() == source.stride() and is_dense(target):
        return
    up = target.device.type == "cuda"
    # A blocking copy changes the type on the host, any other on the device.
    converts = not alike and not blocking
    if up:
        keeps = target.is_contiguous() and (alike or not converts)
        wanted = source.dtype if converts else target.dtype
        if not keeps:
            torch.empty(target.shape, dtype=wanted, device="cuda")
    elif converts or not source.is_contiguous():
        wanted = target.dtype if converts else source.dtype
        converted = torch.empty_like(source, dtype=wanted) if converts else source
        if not converted.is_contiguous() or converted.shape != target.shape:
            torch.empty(target.shape, dtype=wanted, device="cuda")


def laid_like(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value of the host, its elements in memory where those of the target are."""
    if value.stride() == target.stride():
        return value
    laid = torch.empty_strided(target.shape, target.stride(), dtype=value.dtype, device="cpu")
    return laid.copy_(value)
