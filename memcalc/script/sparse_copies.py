"""Sparse tensors between host and simulated GPU: part by part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.trace.operators.sparse_parts import (
    ELSEWHERE,
    assembled,
    is_compressed,
    is_sparse,
    like,
    parts,
)
from memcalc.trace.torch_private.dispatch import FakeTensor, without_dispatch

_MAKES = torch.ops.aten.sparse_compressed_tensor.comp_plain_value_size
_NOT_SENT = (
    "of sparse tensors those in coordinates and in compressed rows or columns (CSR, CSC) are "
    f"copied from the host to a simulated GPU: {ELSEWHERE}"
)
Copy = Callable[..., Any]
"""``_to_copy`` of a dense tensor."""


def to_device(
    tensor: torch.Tensor, dtype: torch.dtype, copy: Copy, recording: AbstractContextManager[Any]
) -> torch.Tensor:
    """What the GPU has of a sparse tensor of the host.

    Sources: indices, then values in SparseTensor.cpp's ``copy_sparse_to_sparse_``; values, then
    what is compressed in TensorConversions.cpp's ``_to_copy`` (2.13).

    Raises:
        EstimateError: it is of another layout, or a fake one.
    """
    if isinstance(tensor, FakeTensor) or not (is_sparse(tensor) or is_compressed(tensor)):
        raise EstimateError(_NOT_SENT)
    with without_dispatch():
        held = parts(tensor)
    if is_sparse(tensor):
        indices = copy(held[0], dtype=torch.long)
        values = copy(held[1], dtype=dtype)
        with recording:
            return like(tensor, indices, values)
    values = copy(held[2], dtype=dtype)
    first, second = copy(held[0]), copy(held[1])
    with recording:
        made: torch.Tensor = _MAKES(first, second, values, list(tensor.shape), layout=tensor.layout)
        return made


def to_host(
    tensor: torch.Tensor, dtype: torch.dtype, copy: Copy, recording: AbstractContextManager[Any]
) -> torch.Tensor:
    """The same of the host; nobody looks whether unknown positions, all zeros, can be there."""
    with recording:
        held = parts(tensor)
        layout, unique = tensor.layout, is_compressed(tensor) or tensor.is_coalesced()
    *places, values = (copy(part) for part in held)
    with without_dispatch():
        values = values.to(dtype)
        return assembled(layout, (*places, values), tensor.shape, unique=unique, device="cpu")
