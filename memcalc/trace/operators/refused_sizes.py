"""Sizes that CUDA's operators refuse and fake tensors let pass, in PyTorch's own words.

Source of rules and words: what PyTorch's own CUDA code said of each (2.13, over the stand-in
driver).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from memcalc.trace.operators.convolution import spread

_INDEX_TYPES = (torch.int64, torch.int32, torch.uint8, torch.bool)
_Refuse = Callable[[tuple[Any, ...]], None]


def _convolution(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/Convolution.cpp, ``check_shape_forward`` (2.13)."""
    inputs, weight, bias, stride, padding, dilation, transposed, _, groups = args[:9]
    if inputs.dim() != weight.dim():
        return
    shape, channels = (
        list(weight.shape),
        weight.shape[0] if transposed else weight.shape[1] * groups,
    )
    if any(size < 0 for size in padding):
        raise RuntimeError("negative padding is not supported")
    if any(size <= 0 for size in stride):
        raise RuntimeError("non-positive stride is not supported")
    if shape[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, "
            f"but got weight of size [{shape}] instead"
        )
    how = f"transposed={int(transposed)}" if transposed else f"groups={groups}"
    if inputs.shape[1] != channels:
        raise RuntimeError(
            f"Given {how}, weight of size {shape}, expected input{list(inputs.shape)} to have "
            f"{channels} channels, but got {inputs.shape[1]} channels instead"
        )
    made = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and list(bias.shape) != [made]:
        raise RuntimeError(
            f"Given {how}, weight of size {shape}, expected bias to be 1-dimensional with {made} "
            f"elements, but got bias of size {list(bias.shape)} instead"
            if transposed
            else f"Given weight of size {shape}, expected bias to be 1-dimensional with {made} "
            f"elements, but got bias of size {list(bias.shape)} instead"
        )
    if not transposed:
        _kernel_fits(inputs.shape[2:], shape[2:], padding, dilation)


def _kernel_fits(
    image: Sequence[int], kernel: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> None:
    wide, steps = (spread(one, len(image)) for one in (padding, dilation))
    padded = [size + 2 * more for size, more in zip(image, wide, strict=True)]
    reached = [step * (size - 1) + 1 for size, step in zip(kernel, steps, strict=True)]
    if any(one < other for one, other in zip(padded, reached, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel "
            f"size: ({' x '.join(map(str, reached))}). Kernel size can't be greater than actual "
            "input size"
        )


def _multinomial(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/Distributions.cpp, ``multinomial_out`` (2.13)."""
    weights, count = args[:2]
    if not 0 < weights.dim() <= 2:
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not any(args[2:3]) and count > weights.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )


def _power(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/Pow.cpp (2.13)."""
    base, exponent = args[:2]
    whole = isinstance(base, torch.Tensor) and not (base.is_floating_point() or base.is_complex())
    if whole and type(exponent) is int and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _of_none(name: str) -> _Refuse:
    """Source: aten/src/ATen/native/ReduceAllOps.cpp and ReduceOpsUtils.h (2.13)."""

    def check(args: tuple[Any, ...]) -> None:
        along = len(args) > 1 and type(args[1]) is int and args[0].dim()
        if along and not args[0].shape[args[1]]:
            raise IndexError(f"{name}(): Expected reduction dim {args[1]} to have non-zero size.")
        if len(args) == 1 and not args[0].numel():
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )

    return check


def as_cuda_says(error: ValueError) -> Exception:
    """An error of what fake tensors do in Python, as PyTorch's own code ends there."""
    if not str(error).startswith("Cannot view a tensor"):
        return error
    return RuntimeError(
        "view size is not compatible with input tensor's size and stride (at least one dimension "
        "spans across two contiguous subspaces). Use .reshape(...) instead."
    )


def check_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """What is copied from one device to another has the target's sizes, or one."""
    for back in range(1, min(target.dim(), source.dim()) + 1):
        one, other = target.shape[-back], source.shape[-back]
        if other not in (1, one):
            raise RuntimeError(
                f"The size of tensor a ({one}) must match the size of tensor b ({other}) at "
                f"non-singleton dimension {target.dim() - back}"
            )


def _classes_of_pixels(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/cuda/NLLLoss2d.cu, ``check_inputs_nll_loss2d`` (2.13)."""
    scores, target = args[:2]
    if (scores.dim(), target.dim()) == (4, 3) and (
        target.shape != (scores.shape[0], *scores.shape[2:])
    ):
        raise RuntimeError(
            "input and target batch or spatial sizes don't match: target "
            f"{list(target.shape)}, input {list(scores.shape)}"
        )


def _softmax(args: tuple[Any, ...]) -> None:
    tensor, dim = args[:2]
    most = max(tensor.dim(), 1)
    if not -most <= dim < most:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got "
            f"{dim})"
        )


def _added(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, ``index_func_meta_impl`` (2.13)."""
    tensor, dim, _, source = args[:4]
    shapes = [list(one.shape) for one in (tensor, source)]
    left = [shape[:at] + shape[at:][1:] for shape in shapes for at in (dim % max(len(shape), 1),)]
    if left[0] != left[1]:
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {shapes[0]} source.shape = {shapes[1]}"
        )


def _selected(args: tuple[Any, ...]) -> None:
    if args[2].dim() > 1:
        raise RuntimeError("Index is supposed to be an empty tensor or a vector")


def _whole_products(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/cuda/Blas.cpp, ``_int_mm_out_cuda`` (2.13)."""
    left, right = args[:2]
    if left.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {left.shape[0]}")
    for name, size in (("self.size(1)", left.shape[1]), ("mat2.size(1)", right.shape[1])):
        if not size or size % 8:
            raise RuntimeError(
                f"{name} needs to be greater than 0 and a multiple of 8, but got {size}"
            )


def check_indices(args: tuple[Any, ...]) -> None:
    """What tensors are indexed by, and what is put where places alone say it.

    Source: aten/src/ATen/native/IndexingUtils.h and TensorAdvancedIndexing.cpp (2.13).
    """
    indices = args[1]
    given = [index for index in indices if index is not None]
    if any(index.dtype not in _INDEX_TYPES for index in given):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if not given or any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return
    try:
        shape = torch.broadcast_shapes(*(index.shape for index in given))
    except RuntimeError:
        shapes = ", ".join(str(list(index.shape)) for index in given)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    if len(args) > 2 and isinstance(args[2], torch.Tensor):
        _values_fit(args[2], _indexed(args[0].shape, indices, shape))


def _indexed(sizes: Sequence[int], indices: Sequence[Any], shape: Sequence[int]) -> list[int]:
    """Sizes of what is indexed: places come where they stand, or first where some lie between."""
    at = [dim for dim, index in enumerate(indices) if index is not None]
    left = [size for dim, size in enumerate(sizes) if dim not in at]
    first = at[0] if all(one + 1 == other for one, other in pairwise(at)) else 0
    return [*left[:first], *shape, *left[first:]]


def _values_fit(values: torch.Tensor, wanted: list[int]) -> None:
    given = list(values.shape)
    matched = zip(reversed(given), reversed(wanted), strict=False)
    fits = all(one in (1, other) for one, other in matched)
    # Dimensions of one before others are left out.
    if not fits or any(size != 1 for size in given[: max(len(given) - len(wanted), 0)]):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {given} cannot be broadcast to indexing "
            f"result of shape {wanted}"
        )


CHECKS: dict[str, _Refuse] = {
    "convolution": _convolution,
    "multinomial": _multinomial,
    "pow": _power,
    **{name: _of_none(name) for name in ("max", "min")},
    "nll_loss2d_forward": _classes_of_pixels,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "index_add": _added,
    "index_select": _selected,
    "_int_mm": _whole_products,
}
"""By operator, without the mark of those that write in place."""
