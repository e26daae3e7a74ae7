"""What reductions take on CUDA beside their outputs.

Readers as in ``memcalc.trace.scratch.readers``: they find shapes in the arguments of an operator.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.scratch.shapes import bytes_of, fixed

_PAIR = 16
"""Bytes of a value and its index, aligned."""


def _accumulator(tensor: torch.Tensor) -> int:
    return max(4, tensor.element_size())


def _reduce(
    args: tuple[Any, ...],
    out: Any,
    accumulator: int | None = None,
    element: int | None = None,
) -> KernelCall | None:
    """What an operator reduces.

    Args:
        args: the tensor, and along which dimensions.
        out: its result.
        accumulator: bytes of a partial result; ``None``: as sums have them.
        element: bytes of what is reduced, where that is not the tensor as it is.
    """
    tensor = args[0]
    if tensor.dim() == 0:
        return None
    dims = args[1] if len(args) > 1 else ()
    if not isinstance(dims, list | tuple):
        dims = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else ()
    accumulator = accumulator or _accumulator(tensor)
    element = element or tensor.element_size()
    place = tuple(tensor.shape), tuple(tensor.stride()), tuple(dims)
    result = (out if isinstance(out, torch.Tensor) else out[0]).element_size()
    return KernelCall("reduction", (*place, accumulator, element, result))


def _extreme_values(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Compared in the input's own type: ReduceMaxValuesKernel.cu, ReduceMinValuesKernel.cu."""
    return _reduce(args, out, args[0].element_size())


def _sum(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The input is first cast to the output's type; only 16-bit floats are widened as they go.

    Source: aten/src/ATen/native/ReduceOpsUtils.h, ``make_reduction_from_out_ty`` (2.13).
    """
    tensor = args[0]
    widened = tensor.dtype.itemsize == 2 and out.dtype == torch.float32
    if tensor.dtype == out.dtype or widened:
        return _reduce(args, out)
    call = _reduce(args, out, _accumulator(out), out.element_size())
    if call is None:
        return _copied(out.element_size())
    return KernelCall("reduction", (*call.args, tensor.numel() * out.element_size()))


def _copied(nbytes: int) -> KernelCall:
    """A single number in another type, which is all that there is to it."""
    return fixed(after=nested(nbytes))


def _extreme(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """A value and where it stands, unless only the value is asked for."""
    if isinstance(out, torch.Tensor):
        return _over_all(args[0], out, args[0].element_size())
    return _reduce(args, out, _PAIR)


def _extremes(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    if len(args) > 1 and args[1] is not None:
        return _reduce(args, out, 2 * args[0].element_size())
    return _over_all(args[0], out, 2 * args[0].element_size())


def _over_all(tensor: torch.Tensor, out: Any, accumulator: int) -> KernelCall | None:
    """What does not lie in rows is copied: ReduceAllOps.cpp, ``min_all`` (2.13)."""
    if tensor.is_contiguous():
        return _reduce((tensor,), out, accumulator)
    rows = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    call = _reduce((rows,), out, accumulator)
    assert call is not None
    return KernelCall("reduction", (*call.args, bytes_of(rows)))


def _place(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    return _reduce(args, out, _PAIR)


def _moments(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Mean, sum of squares and two counts: aten/src/ATen/native/SharedReduceOps.h."""
    return _reduce(args, out, 32 if args[0].element_size() == 8 else 16)


def _norm(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The order of a norm comes before what is summed over."""
    return _reduce((args[0], *args[2:3]), out)


def _dist(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The norm of a difference: aten/src/ATen/native/Distance.cpp, ``dist`` (2.13)."""
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    if not shape:
        return None
    difference = torch.empty(shape, dtype=out.dtype, device="meta")
    call = _reduce((difference,), out)
    assert call is not None
    return KernelCall("reduction", (*call.args, 0, bytes_of(difference)))


def _truth(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Of one number it is told whether that is zero.

    Source: aten/src/ATen/native/ReduceOps.cpp, ``allany_impl`` (2.13).
    """
    if args[0].numel() == 1:
        return None if args[0].dtype == torch.bool else _copied(1)
    return _reduce(args, out, 1)


READERS = {
    **dict.fromkeys(("amax", "amin"), _extreme_values),
    **dict.fromkeys(("norm", "linalg_vector_norm"), _norm),
    "dist": _dist,
    **dict.fromkeys(("sum", "mean", "prod", "nansum"), _sum),
    **dict.fromkeys(("max", "min"), _extreme),
    "aminmax": _extremes,
    **dict.fromkeys(("argmax", "argmin"), _place),
    **dict.fromkeys(("any", "all"), _truth),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _moments),
}
