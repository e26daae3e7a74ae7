"""Joins operators to what their CUDA kernels take beside their outputs.

The formulas live in ``memcalc.kernels``; here are only the readers that find shapes in the
arguments of an operator.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels import cub, indexing
from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.operators import batch_norm, convolution
from memcalc.trace.scratch import algebra as algebra_scratch
from memcalc.trace.scratch import attention as attention_scratch
from memcalc.trace.scratch import collectives as collectives_scratch
from memcalc.trace.scratch import fourier as fourier_scratch
from memcalc.trace.scratch import gathering as gathering_scratch
from memcalc.trace.scratch import images as images_scratch
from memcalc.trace.scratch import indexing as indexing_scratch
from memcalc.trace.scratch import losses as losses_scratch
from memcalc.trace.scratch import norms as norms_scratch
from memcalc.trace.scratch import products as products_scratch
from memcalc.trace.scratch import reduction as reduction_scratch
from memcalc.trace.scratch import step as step_scratch
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed, is_dense

EFFICIENT = "_scaled_dot_product_efficient_attention"
OUTPUT_ORDER: dict[str, tuple[int, ...]] = {
    # The mask is allocated first.
    "native_dropout": (1, 0),
    # Seed and offset stay on the host.
    EFFICIENT: (0, 1),
    "_efficient_attention_forward": (0, 1),
    # Sequences' ends are of the other layout.
    "_scaled_dot_product_flash_attention": (0, 1, 6, 7),
    # The weights' sum comes first.
    "nll_loss2d_forward": (1, 0),
    # Seed and offset are made first, with or without dropout.
    "_scaled_dot_product_cudnn_attention": (6, 7, 0, 1),
    # EmbeddingBag.cu, ``_embedding_bag_cuda``: sizes and bags of the indices come first.
    "_embedding_bag": (2, 1, 0, 3),
    "_embedding_bag_forward_only": (2, 1, 0, 3),
}
"""Operators whose outputs CUDA allocates in another order, or not all on the device."""
FLASH = "_scaled_dot_product_flash_attention"
FLASH_DRAWS = (0, 1, 7, 6)
"""With dropout the seed is made anew behind the one that it takes the place of."""
AMID = {FLASH: 2}
"""Operators whose kernels take what they need behind so many outputs, and make the others then.

Source: flash_api.cpp, ``mha_fwd`` (2.11 and 2.13).
"""
SEEDED, SEEDED_SINCE = (2, 3, 0, 1), (2, 14)
"""Without dropout this PyTorch makes seed and offset on the device, first (2.14 and 2.15)."""
FLASH_SEEDED_SINCE = (2, 7)
"""Before, flash attention has its seed and offset on the host (recorded with 2.6.0 and 2.7.1)."""
DROPOUT = 5
"""Place of its probability among the arguments."""


def _sort(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    tensor = args[0]
    if tensor.dim() == 0:
        return None
    whole = [arg for arg in args[1:] if isinstance(arg, int) and not isinstance(arg, bool)]
    dim = whole[0] if whole else -1
    in_rows = tensor.stride(dim) == 1 and is_dense(tensor)
    return KernelCall("sort", (tensor.numel(), tensor.shape[dim], tensor.element_size(), in_rows))


def _topk(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Long slices are shared by blocks; what is chosen of them is sorted as a whole if it is much.

    Source: TensorTopK.cpp, ``topk_out_cuda``, and TensorTopK.cu (2.13).
    """
    values, count = out[0], args[1]
    dim, ordered = (args[2:3] or (-1,))[0], (args[4:5] or (True,))[0]
    size = args[0].element_size()
    chosen = (
        (args[0].numel() // args[0].shape[dim], args[0].shape[dim]) if args[0].dim() else (0, 0)
    )
    copied = 0 if args[0].is_contiguous() else bytes_of(args[0])
    if not ordered or not values.dim() or count <= indexing.SORTED_IN_BLOCKS:
        return KernelCall("radix_topk", (*chosen, size, copied))
    in_rows = values.stride(dim) == 1 and is_dense(values)
    return KernelCall("topk", (values.numel(), count, size, in_rows, chosen, copied))


def _copied_in_rows(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What lies across is copied first: Sorting.cpp, TensorTransformations.cu, AveragePool3d.cu."""
    return None if args[0].is_contiguous() else fixed(before=(bytes_of(args[0]),), after=(~0,))


def _scanned_in_rows(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Source: aten/src/ATen/native/cuda/ScanUtils.cuh, ``scan_dim_with_indices`` (2.13)."""
    return None if args[0].is_contiguous() else fixed(after=(bytes_of(args[0]), ~0))


def _size_of_complex(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Complex results first, whose real parts are kept.

    Source: aten/src/ATen/native/UnaryOps.cpp, ``unary_op_impl_with_complex_to_float`` (2.13).
    """
    return fixed(after=(bytes_of(args[0]), ~0)) if args[0].is_complex() else None


def _cumsum(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """One row is scanned by all blocks together; of several, each block scans its own.

    What is of another type than the sums is copied first. Source:
    aten/src/ATen/native/ReduceOps.cpp, ``impl_func_cum_ops``, and
    aten/src/ATen/native/cuda/ScanUtils.cuh, ``scan_dim`` (2.13).
    """
    tensor, dim = args[:2]
    if tensor.dim() == 0 or not tensor.numel():
        return None
    count, size = tensor.numel(), out.element_size()
    copied = count * size if tensor.dtype != out.dtype or not tensor.is_contiguous() else 0
    scanned = count if count == tensor.shape[dim] and size in cub.SCANNED else 0
    return KernelCall("scan", (scanned, size, copied)) if scanned or copied else None


_NUMBER = 8
"""Bytes of a whole or a real number that comes to the device by itself."""


def _pow(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """A number as base becomes a tensor, a tensor is cast before a number's kernel.

    Source: aten/src/ATen/native/Pow.cpp and cuda/PowKernel.cu (2.13).
    """
    base, exponent = args[:2]
    if isinstance(base, torch.Tensor) and not isinstance(exponent, torch.Tensor):
        return fixed(after=nested(_cast(base, out.dtype)))
    if isinstance(base, torch.Tensor) or base == 1:
        return None
    return fixed(after=(2 * _NUMBER if isinstance(base, complex) else _NUMBER, ~0))


def _cast(tensor: torch.Tensor, kind: torch.dtype) -> int:
    """Bytes of a copy in this type, where it has another."""
    return tensor.numel() * kind.itemsize if tensor.dtype != kind else 0


def _clamp(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What numbers of another type limit is cast first; what tensors limit is not (seen, 2.13)."""
    if any(isinstance(bound, torch.Tensor) for bound in args[1:]):
        return None
    return fixed(after=nested(_cast(args[0], out.dtype)))


def _where(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Both are cast to the type of the result, bytes to truths.

    Source: aten/src/ATen/native/TensorCompare.cpp, ``where_self_out`` (2.13).
    """
    mask, *both = args[:3]
    casts = nested(*(_cast(one, out.dtype) for one in both), _cast(mask, torch.bool))
    return fixed(before=casts[: len(casts) // 2], after=casts[len(casts) // 2 :])


def _search(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What does not lie in rows is copied, and both are cast to one type.

    A number that is looked for becomes a tensor, of the type of those that it is among. Source:
    aten/src/ATen/native/BucketizationUtils.h, ``searchsorted_maybe_trim_input_tensors`` and
    ``searchsorted_scalar_tensor`` (2.13).
    """
    first, second = args[:2]
    among, sought = (first, second) if isinstance(first, torch.Tensor) else (second, first)
    if isinstance(sought, torch.Tensor):
        both, kind = (first, second), torch.result_type(first, second)
        copies = (0 if one.is_contiguous() else bytes_of(one) for one in both)
        return fixed(after=nested(*copies, *(_cast(one, kind) for one in both)))
    made = torch.float64 if isinstance(sought, float) else torch.int64
    cast = among.element_size() if among.dtype != made else 0
    return fixed(after=nested(_NUMBER, cast))


def _randperm(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    return KernelCall("randperm", (out.numel(), out.element_size()))


def _pdist_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The part of each pair, summed in the end. Source: Distance.cpp and cuda/DistanceKernel.cu."""
    rows, width = out.shape
    size = max(rows - 1, 0) * rows * width * out.element_size()
    return fixed(after=(size, ~0)) if size else None


def _cdist_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    right = args[2]
    size = right.shape[-2] * out.numel() * out.element_size()
    return fixed(after=(size, ~0)) if size else None


def _unfold_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Places along the dimension. Source: aten/src/ATen/native/UnfoldBackward.h."""
    grad, _, dim, size, step = args[:5]
    places = (grad.shape[dim] - 1) * step + size if grad.dim() > dim else 0
    return fixed(after=(places * 8, ~0)) if places and step < size else None


def _of(library: str) -> Reader:
    """A library's workspace that nobody can tell."""
    return lambda args, out: KernelCall("untold", (library,))


_OF_JAGGED = ("_flash_attention_backward", "_efficient_attention_backward")
_ALGEBRA = (
    *("linalg_lu_factor_ex", "linalg_cholesky_ex", "linalg_ldl_factor_ex", "geqrf", "ormqr"),
    *("linalg_eig", "linalg_lstsq", "linalg_matrix_exp"),
)


READERS: dict[str, Reader] = {
    **step_scratch.READERS,
    **reduction_scratch.READERS,
    **attention_scratch.READERS,
    **fourier_scratch.READERS,
    **gathering_scratch.READERS,
    **collectives_scratch.READERS,
    **products_scratch.READERS,
    **norms_scratch.READERS,
    **images_scratch.READERS,
    **indexing_scratch.READERS,
    **algebra_scratch.READERS,
    **losses_scratch.READERS,
    "sort": _sort,
    "topk": _topk,
    **dict.fromkeys(("abs", "angle"), _size_of_complex),
    **dict.fromkeys(("median", "nanmedian", "kthvalue", "roll", "avg_pool3d"), _copied_in_rows),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _cumsum),
    **dict.fromkeys(("cummax", "cummin"), _scanned_in_rows),
    "randperm": _randperm,
    "pow": _pow,
    "where": _where,
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("searchsorted", "bucketize"), _search),
    "native_batch_norm": batch_norm.forward_call,
    "native_batch_norm_backward": batch_norm.backward_call,
    "convolution": convolution.forward_call,
    "convolution_backward": convolution.backward_call,
    "_pdist_backward": _pdist_backward,
    "_cdist_backward": _cdist_backward,
    "unfold_backward": _unfold_backward,
    **dict.fromkeys(_ALGEBRA, _of("cuSOLVER")),
    **dict.fromkeys(_OF_JAGGED, _of("jagged")),
}
