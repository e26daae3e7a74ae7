"""Operators that are one for fake tensors but several on CUDA, or larger there than their result.

Each function here does what CUDA does; the operators it calls are recorded one by one. Where it
returns ``NotImplemented``, the operator is one on CUDA as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memcalc.trace.operators import release
from memcalc.trace.operators.strides import resized

_MEAN, _SUM = 1, 2
_aten = torch.ops.aten


def logsumexp(tensor: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    """Source: aten/src/ATen/native/ReduceOps.cpp, ``logsumexp_out_impl`` (2.13)."""
    if not tensor.numel() or not tensor.is_floating_point():
        return NotImplemented
    largest = torch.amax(tensor, list(dim), keepdim=True)
    sizes = torch.empty_like(largest)
    finite = torch.empty_like(largest, dtype=torch.bool)
    del finite, sizes
    powers = torch.empty_like(tensor)
    return torch.sum(powers, list(dim), keepdim=keepdim)


def safe_softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """2.5 makes shares, and another tensor of them with rows of zeros (recorded with 2.5.1)."""
    if release.is_since(2, 6) or not release.is_since(2, 5):
        return NotImplemented
    shares = torch.softmax(tensor, dim, dtype)
    limit = torch.scalar_tensor(float("-inf"), dtype=tensor.dtype, device=tensor.device)
    masked = tensor == limit
    rows = masked.all(dim, keepdim=True)
    zero = torch.scalar_tensor(0.0, dtype=shares.dtype, device=tensor.device)
    return torch.where(rows, zero, shares)


def mean_squares(
    left: torch.Tensor, right: torch.Tensor, reduction: int = _MEAN, beta: float = 1.0
) -> Any:
    """``mse_loss`` and ``smooth_l1_loss``: a result of one number keeps the room of all.

    Source: aten/src/ATen/native/BinaryOps.cpp, ``mse_loss_out``, ``smooth_l1_loss_out`` (2.13).
    """
    if reduction not in (_MEAN, _SUM):
        return NotImplemented
    room = torch.empty(
        torch.broadcast_shapes(left.shape, right.shape),
        dtype=torch.result_type(left, right),
        device=left.device,
    )
    each = torch.empty_like(room)
    number = torch.as_strided(room, (), ())
    reduce = _aten.mean.out if reduction == _MEAN else _aten.sum.IntList_out
    reduce(each, [], out=number)
    return number


def huber(
    left: torch.Tensor, right: torch.Tensor, reduction: int = _MEAN, delta: float = 1.0
) -> Any:
    """Source: aten/src/ATen/native/Loss.cpp, ``huber_loss`` (2.13)."""
    if reduction not in (_MEAN, _SUM):
        return NotImplemented
    each = torch.empty_like(left, dtype=torch.result_type(left, right))
    return each.mean() if reduction == _MEAN else each.sum()


def roll(tensor: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """One dimension after the other: aten/src/ATen/native/TensorTransformations.h (2.13)."""
    if len(dims) < 2:
        return NotImplemented
    first = torch.roll(tensor, shifts[0], dims[0])
    return torch.roll(first, list(shifts[1:]), list(dims[1:]))


def isinf(tensor: torch.Tensor) -> Any:
    """The magnitude is compared: aten/src/ATen/native/TensorCompare.cpp, ``isinf`` (2.13)."""
    return tensor.abs() == torch.inf if tensor.is_floating_point() else NotImplemented


def pack_padded_sequence(
    tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, B, *) or (B, T, *) to the rows of all steps, and the samples in each, on the host.

    Source: aten/src/ATen/native/PackedSequence.cpp, ``_pack_padded_sequence`` (2.13).
    """
    steps = tensor.transpose(0, 1) if batch_first else tensor
    sizes_given = lengths.tolist()
    _check_lengths(sizes_given, steps.shape[1])
    pieces, sizes, done = [], [], 0
    for left, length in zip(range(len(lengths), 0, -1), reversed(sizes_given), strict=True):
        if length > done:
            pieces.append(steps[done:length, :left].contiguous().view(-1, *steps.shape[2:]))
            sizes += [left] * (length - done)
            done = length
    rows = torch.cat(pieces)
    while pieces:
        # C++ frees a vector from its front.
        del pieces[0]
    return rows, torch.tensor(sizes, dtype=torch.long, device="cpu")


def _check_lengths(lengths: list[int], batch: int) -> None:
    if len(lengths) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} "
            f"(batch_size={batch})"
        )
    if lengths and min(lengths) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    if lengths != sorted(lengths, reverse=True):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )


def im2col(tensor: torch.Tensor, *window: Any) -> torch.Tensor:
    """Source: aten/src/ATen/native/cuda/Im2Col.cu, ``im2col_cuda`` (2.13)."""
    return _columns(tensor, _aten.im2col(tensor.to("meta"), *window).shape)


def col2im(tensor: torch.Tensor, *window: Any) -> torch.Tensor:
    """Source: aten/src/ATen/native/cuda/Col2Im.cu, ``col2im_cuda`` (2.13)."""
    return _columns(tensor, _aten.col2im(tensor.to("meta"), *window).shape)


def _columns(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The output is made like the input, which is copied if not in rows, then in its own size."""
    room = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    copied = tensor.contiguous()
    out = resized(room, shape)
    del copied
    return out


def blackman_window(length: int, periodic: bool = True, **options: Any) -> Any:
    """Two waves are taken from a number: aten/src/ATen/native/TensorFactories.cpp (2.13)."""
    if length < _SHORT:
        return NotImplemented
    places = _places_of_window(length, periodic, options)
    fourth, second = (places.mul(times).cos_().mul_(0.5) for times in (4, 2))
    both = fourth - second
    window = both + 0.42
    del both, second, fourth, places
    return window[:length]


def kaiser_window(length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Any:
    """Of the same file: the places are numbers before the window is made of them."""
    if length < _SHORT:
        return NotImplemented
    places = _places_of_window(length, periodic, options)
    window = torch.empty_like(places)
    del places
    return window[:length]


_SHORT = 2
"""A window of one number is that number."""


def _places_of_window(length: int, periodic: bool, options: dict[str, Any]) -> torch.Tensor:
    kind = options.get("dtype") or torch.get_default_dtype()
    return torch.arange(length + bool(periodic), dtype=kind, device=options.get("device"))


def affine_grid(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
    """Every place in numbers from -1 to 1 and a one, multiplied by each picture's matrix.

    Source: aten/src/ATen/native/AffineGridGenerator.cpp (2.13).

    Args:
        theta: (N, 2, 3), or (N, 3, 4) of volumes.
        size: (N, C, H, W) or (N, C, D, H, W).
        align_corners: which places the ends are; of no weight here.
    """
    count, _, *places = size
    base = theta.new_empty((count, *places, len(places) + 1))
    out = base.view(count, -1, len(places) + 1).bmm(theta.transpose(1, 2))
    return out.view(count, *places, len(places))
