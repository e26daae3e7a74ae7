"""Operators whose results hang on values: CUDA reads a number of the device before it makes them.

Sources: aten/src/ATen/native/cuda/ Nonzero.cu (``nonzero_cuda_out_impl``), UniqueCub.cu
(``unique_cuda_template``), SummaryOps.cu; Repeat.h, TensorCompare.cpp. In which order
they allocate was recorded with PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.trace import device

_aten = torch.ops.aten
NONZERO = _aten.nonzero.default
ALL_NONZERO = "every element is taken to be nonzero"
"""Assumed where values are not known: that is the most there can be."""
Take = Callable[[KernelCall], None]
"""Writes down what a kernel takes by itself."""


def _made(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=device.NAME)


def every_position(tensor: torch.Tensor) -> torch.Tensor:
    """The values that go with ``ALL_NONZERO``."""
    return torch.ones(tensor.shape).nonzero()


def nonzero(take: Take, tensor: torch.Tensor, found: int) -> torch.Tensor:
    """Positions of what is not zero, shape (``found``, dimensions); a dimension lies in a row."""
    whole = tensor.contiguous()
    number = _made(1, torch.int32)
    take(KernelCall("count", (tensor.numel(),)))
    places = torch.empty(tensor.dim(), found, dtype=torch.long, device=device.NAME).t()
    if tensor.dim():
        take(KernelCall("select", (tensor.numel(),)))
    del number, whole
    return places


def _unique(
    take: Take,
    made: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, ...]:
    if tensor.dtype is torch.bool:
        return _unique_truths(take, made, tensor, return_inverse, return_counts)
    count, size, real = tensor.numel(), tensor.element_size(), tensor.is_floating_point()
    ordered, order = torch.empty_like(tensor), None
    if return_inverse:
        numbers, order = _made(count, torch.long), _made(count, torch.long)
        take(KernelCall("sort_pairs", (count, size)))
        del numbers
    else:
        take(KernelCall("sort_keys", (count, size, real)))
    # Where each came from is found by way of its place among the sorted ones.
    out = _of_sorted(take, made, tensor, torch.long, return_inverse, return_counts)
    del order, ordered
    return out


def _unique_alone(
    take: Take, made: Any, tensor: torch.Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[torch.Tensor, ...]:
    made = *made, _made(0, torch.long)
    return _unique(take, made, tensor, sorted, return_inverse)[:2]


def _consecutive(
    take: Take,
    made: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    if dim is not None:
        return NotImplemented
    return _of_sorted(take, made, tensor, torch.int32, return_inverse, return_counts)


def _of_sorted(
    take: Take,
    made: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    flags: torch.dtype,
    return_inverse: bool,
    return_counts: bool,
) -> tuple[torch.Tensor, ...]:
    """Results have room for as many as there are to begin with, and keep it."""
    count, found = tensor.numel(), made[0].numel()
    inverse = counts = _made(0, torch.long)
    if return_inverse:
        inverse, first = _made(count, torch.long), _made(count, flags)
        take(KernelCall("sum_flags", (count,)))
        del first
    values, length = _made(count, tensor.dtype), _made(1, torch.long)
    if return_counts:
        counts = _made(count, torch.long)
        take(KernelCall("run_lengths", (count,)))
    else:
        size, real = tensor.element_size(), tensor.is_floating_point()
        take(KernelCall("distinct", (count, size, real)))
    del length
    return values[:found], inverse.view(made[1].shape), counts[:found] if return_counts else counts


def _unique_truths(
    take: Take,
    made: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    return_inverse: bool,
    return_counts: bool,
) -> tuple[torch.Tensor, ...]:
    """Two are counted, and nothing is sorted."""
    whole, number = tensor.contiguous(), _made(1, torch.int32)
    take(KernelCall("count", (tensor.numel(),)))
    values, counts = _made(2, torch.bool), _made(2, torch.long)
    inverse = _made(tensor.numel() if return_inverse else 0, torch.long).view(made[1].shape)
    del number, whole
    found = made[0].numel()
    return values[:found], inverse, counts[:found] if return_counts else _made(0, torch.long)


def _repeated(
    take: Take, made: Any, repeats: torch.Tensor, *, output_size: int | None = None
) -> torch.Tensor:
    """Which element is repeated, by the running sum; whether all counts are valid is read."""
    sums = repeats.contiguous().cumsum(0)
    if output_size is None:
        valid = repeats >= 0
        valid.all()
        del valid
    out = torch.empty_like(made, device=device.NAME)
    del sums
    return out


def _counts(
    take: Take, made: Any, tensor: torch.Tensor, weights: Any = None, minlength: int = 0
) -> torch.Tensor:
    """How often there is each number, up to the largest."""
    ends = list(tensor.aminmax()) if tensor.numel() else []
    out = torch.empty_like(made, device=device.NAME)
    while ends:
        ends.pop(0)
    return out


def _close(take: Take, made: Any, *of: Any, **how: Any) -> Any:
    torch.isclose(*of, **how).all()
    return made


COUNTED: dict[Any, Callable[..., Any]] = {
    _aten._unique2.default: _unique,
    _aten._unique.default: _unique_alone,
    _aten.unique_consecutive.default: _consecutive,
    _aten.repeat_interleave.Tensor: _repeated,
    _aten.bincount.default: _counts,
    _aten.allclose.default: _close,
}
"""Given what their results are like where values are known (``made``), make these on the device."""
