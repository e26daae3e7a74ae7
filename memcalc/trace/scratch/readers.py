"""Joins operators to what their CUDA kernels take beside their outputs.

The formulas live in ``memcalc.kernels``; here are only the readers that find shapes in the
arguments of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from memcalc.kernels import cub
from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.operators import batch_norm, convolution
from memcalc.trace.scratch import attention as attention_scratch
from memcalc.trace.scratch import collectives as collectives_scratch
from memcalc.trace.scratch import gathering as gathering_scratch
from memcalc.trace.scratch import products as products_scratch
from memcalc.trace.scratch import reduction as reduction_scratch
from memcalc.trace.scratch import step as step_scratch
from memcalc.trace.scratch.step import is_dense
from memcalc.trace.torch_private.tensors import suggest_memory_format

OUTPUT_ORDER: dict[str, tuple[int, ...]] = {
    # The mask is allocated first.
    "native_dropout": (1, 0),
    # Seed and offset stay on the host.
    "_scaled_dot_product_efficient_attention": (0, 1),
    # The weights' sum comes first.
    "nll_loss2d_forward": (1, 0),
    # Seed and offset are made first, with or without dropout.
    "_scaled_dot_product_cudnn_attention": (6, 7, 0, 1),
    # EmbeddingBag.cu, ``_embedding_bag_cuda``: sizes and bags of the indices come first.
    "_embedding_bag": (2, 1, 0, 3),
    "_embedding_bag_forward_only": (2, 1, 0, 3),
}
"""Operators whose outputs CUDA allocates in another order, or not all on the device."""

Reader = Callable[[tuple[Any, ...], Any], KernelCall | None]
"""Finds a kernel call in an operator's arguments and output; ``None`` where there is none."""


def _sort(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    tensor = args[0]
    if tensor.dim() == 0:
        return None
    whole = [arg for arg in args[1:] if isinstance(arg, int) and not isinstance(arg, bool)]
    dim = whole[0] if whole else -1
    in_rows = tensor.stride(dim) == 1 and is_dense(tensor)
    return KernelCall("sort", (tensor.numel(), tensor.shape[dim], tensor.element_size(), in_rows))


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
    copied = count * size if tensor.dtype != out.dtype else 0
    scanned = count if count == tensor.shape[dim] and size in cub.SCANNED else 0
    return KernelCall("scan", (scanned, size, copied)) if scanned or copied else None


def _randperm(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    return KernelCall("randperm", (out.numel(), out.element_size()))


def _masked_scatter(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    tensor, mask, source = args[:3]
    whole = mask.is_contiguous() and mask.shape == tensor.shape
    copied = 0 if source.is_contiguous() else source.numel() * source.element_size()
    sizes = tensor.numel(), 0 if whole else tensor.numel(), copied
    return KernelCall("masked_scatter", sizes) if tensor.numel() else None


def _index_put(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    tensor, indices = args[:2]
    if not (len(args) > 3 and args[3]):
        return None
    given = [index for index in indices if index is not None]
    count = math.prod(torch.broadcast_shapes(*(index.shape for index in given)))
    rows = math.prod(
        size for size, index in zip(tensor.shape, indices, strict=False) if index is not None
    )
    return KernelCall("index_put", (count, len(given), rows))


def _embedding(args: tuple[Any, ...], out: Any) -> KernelCall:
    grad, indices, rows, _, by_frequency = args[:5]
    # What does not lie in a row is copied first: Embedding.cu, ``embedding_dense_backward_cuda``.
    return _table_gradient(grad, indices, rows, False, bool(by_frequency))


_MAX = 2
"""The mode of a bag that takes the largest."""


def _embedding_bag(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Source: aten/src/ATen/native/cuda/EmbeddingBag.cu, ``_embedding_bag_dense_backward_cuda``."""
    grad, indices, _, _, _, rows, by_frequency, mode = args[:8]
    if mode == _MAX:
        return None
    return _table_gradient(grad, indices, rows, True, bool(by_frequency))


def _table_gradient(
    grad: torch.Tensor, indices: torch.Tensor, rows: int, bag: bool, by_frequency: bool
) -> KernelCall:
    copies = tuple(t.numel() * t.element_size() for t in (indices, grad) if not t.is_contiguous())
    sizes = indices.numel(), rows, grad.shape[-1], indices.element_size()
    return KernelCall("embedding_backward", (*sizes, copies, bag, by_frequency))


def _softmax(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What does not lie in rows is copied once the output is there.

    Source: aten/src/ATen/native/cuda/SoftMax.cu, ``host_softmax`` (2.11 and 2.13).
    """
    given = args[0]
    if given.is_contiguous():
        return None
    return _fixed(after=(given.numel() * given.element_size(), ~0))


def _safe_softmax(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Rows that are masked whole become zero: which elements are, which rows, and the zero.

    Source: aten/src/ATen/native/SoftMax.cpp, ``_safe_softmax`` (2.11 and 2.13).
    """
    given, rows = args[0], math.prod(out.shape[:-1])
    if given.is_contiguous():
        return _fixed(after=(out.numel(), rows, 4, ~2, ~1, ~0))
    copied = given.numel() * given.element_size()
    return _fixed(after=(copied, ~0, out.numel(), rows, 4, ~3, ~2, ~1))


def _softmax_backward(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The product of gradient and output, and a copy of it where it does not lie in rows.

    Source: aten/src/ATen/native/cuda/SoftMax.cu, ``softmax_backward_cuda_out`` (2.11 and 2.13).
    """
    grad, output = args[:2]
    size = grad.numel() * max(grad.element_size(), output.element_size())
    # The product lies as the gradient does, unless that has gaps.
    in_rows = grad.is_contiguous() or not is_dense(grad)
    return _fixed(after=(size, ~0) if in_rows else (size, size, ~1, ~0))


def _gradient_in_rows(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """A gradient that does not lie in rows is copied, after the result is made.

    Seen with PyTorch 2.13's CUDA build, as are the two below.
    """
    return _copied(args[0], torch.contiguous_format)


def _gradient_of_image(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The same, but channels may come last."""
    return _copied(args[0], suggest_memory_format(args[0]))


def _gradient_of_pool(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The same, but channels come last where they do in the input."""
    return _copied(args[0], suggest_memory_format(args[1]))


def _adaptive_max_pool(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Input and outputs are copied where they do not lie in rows.

    Source: aten/src/ATen/native/cuda/AdaptiveMaxPooling2d.cu (2.13).
    """
    return _in_rows(*out, args[0])


def _adaptive_max_pool_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    return _in_rows(args[0], args[2], out)


def _in_rows(*tensors: torch.Tensor) -> KernelCall | None:
    """Copies of those that do not lie in rows, in this order."""
    sizes = [t.numel() * t.element_size() for t in tensors if not t.is_contiguous()]
    return _fixed(after=nested(*sizes)) if sizes else None


def _copied(grad: torch.Tensor, layout: torch.memory_format) -> KernelCall | None:
    if grad.is_contiguous(memory_format=layout):
        return None
    return _fixed(after=(grad.numel() * grad.element_size(), ~0))


def _embedding_forward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Indices in a row: a copy, unless they lie so already.

    Source: aten/src/ATen/native/Embedding.cpp, ``embedding_symint`` (2.13).
    """
    indices = args[1]
    if indices.dim() == 1 or indices.is_contiguous():
        return None
    return _fixed(before=(indices.numel() * indices.element_size(),), after=(~0,))


def _index(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Several index tensors of different strides are copied to lie alike.

    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, ``AdvancedIndex`` (2.13).
    """
    indices = [index for index in args[1] if index is not None]
    if len(indices) < 2:
        return None
    expanded = torch.broadcast_tensors(*indices)
    if all(tensor.stride() == expanded[0].stride() for tensor in expanded):
        return None
    copied = [t.numel() * t.element_size() for t in expanded if not t.is_contiguous()]
    return _fixed(before=tuple(copied), after=tuple(~number for number in range(len(copied))))


def _group_norm(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Moments in float32 of 16-bit inputs; scale and shift of each channel where there are any."""
    inputs, weight, bias, samples, channels, area, groups = args[:7]
    moments = samples * groups * 4 if inputs.element_size() < 4 else 0
    scaled = area > 1 and not (weight is None and bias is None)
    return KernelCall("group_norm", (moments, samples * channels * 4 if scaled else 0))


def _group_norm_backward(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Two sums for each channel, two numbers for each group, and the channels' scale.

    Source: aten/src/ATen/native/cuda/group_norm_kernel.cu (2.11 and 2.13).
    """
    weight, samples, channels, area, groups = args[4:9]
    each, group = samples * channels * 4, samples * groups * 4
    if weight is None or area == 1:
        return _fixed(after=(each, each, group, group, ~3, ~2, ~1, ~0))
    return _fixed(after=(each, each, group, group, each, ~3, ~2, ~4, ~1, ~0))


def _layer_norm(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Inputs that do not lie in rows are copied first.

    Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, ``layer_norm_cuda`` and
    ``layer_norm_backward_cuda``; recorded with PyTorch 2.13.
    """
    tensors = args[:2] if isinstance(args[1], torch.Tensor) else args[:1]
    copied = [t.numel() * t.element_size() for t in tensors if not t.is_contiguous()]
    if not copied:
        return None
    return _fixed(before=tuple(copied), after=tuple(~n for n in reversed(range(len(copied)))))


def _pdist_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The part of each pair, summed in the end. Source: Distance.cpp and cuda/DistanceKernel.cu."""
    rows, width = out.shape
    size = max(rows - 1, 0) * rows * width * out.element_size()
    return _fixed(after=(size, ~0)) if size else None


def _cdist_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    right = args[2]
    size = right.shape[-2] * out.numel() * out.element_size()
    return _fixed(after=(size, ~0)) if size else None


def _unfold_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Places along the dimension. Source: aten/src/ATen/native/UnfoldBackward.h."""
    grad, _, dim, size, step = args[:5]
    places = (grad.shape[dim] - 1) * step + size if grad.dim() > dim else 0
    return _fixed(after=(places * 8, ~0)) if places and step < size else None


def _of(library: str) -> Reader:
    """A library's workspace that nobody can tell."""
    return lambda args, out: KernelCall("untold", (library,))


_FOURIER = ("_fft_r2c", "_fft_c2r", "_fft_c2c")
_ALGEBRA = (
    *("linalg_inv_ex", "linalg_lu_factor_ex", "linalg_lu", "_linalg_solve_ex", "_linalg_det"),
    *("_linalg_slogdet", "linalg_cholesky_ex", "cholesky_inverse", "_cholesky_solve_helper"),
    *("linalg_qr", "geqrf", "ormqr", "linalg_householder_product", "linalg_ldl_factor_ex"),
    *("_linalg_eigh", "linalg_eig", "_linalg_svd", "linalg_lstsq", "linalg_lu_solve"),
    "linalg_matrix_exp",
)


def _fixed(before: tuple[Any, ...] = (), after: tuple[Any, ...] = ()) -> KernelCall:
    return KernelCall("fixed", (before, after))


_IN_ROWS = (
    "_log_softmax_backward_data",
    "upsample_bicubic2d_backward",
    *("upsample_nearest1d_backward", "upsample_linear1d_backward"),
    *("upsample_nearest3d_backward", "upsample_trilinear3d_backward"),
)
_IMAGES = (
    "upsample_nearest2d_backward",
    "_upsample_nearest_exact2d_backward",
    "upsample_bilinear2d_backward",
)
_POOLS = (
    "max_pool2d_with_indices_backward",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
)
READERS: dict[str, Reader] = {
    **step_scratch.READERS,
    **reduction_scratch.READERS,
    **attention_scratch.READERS,
    **gathering_scratch.READERS,
    **collectives_scratch.READERS,
    **products_scratch.READERS,
    "embedding": _embedding_forward,
    "index": _index,
    **dict.fromkeys(("native_layer_norm", "native_layer_norm_backward"), _layer_norm),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    "_softmax_backward_data": _softmax_backward,
    **dict.fromkeys(_IN_ROWS, _gradient_in_rows),
    **dict.fromkeys(_IMAGES, _gradient_of_image),
    **dict.fromkeys(_POOLS, _gradient_of_pool),
    "adaptive_max_pool2d": _adaptive_max_pool,
    "adaptive_max_pool2d_backward": _adaptive_max_pool_backward,
    "_safe_softmax": _safe_softmax,
    "sort": _sort,
    **dict.fromkeys(("cumsum", "logcumsumexp"), _cumsum),
    "randperm": _randperm,
    **dict.fromkeys(("masked_scatter", "masked_scatter_"), _masked_scatter),
    "index_put_": _index_put,
    "native_batch_norm": batch_norm.forward_call,
    "convolution": convolution.forward_call,
    "convolution_backward": convolution.backward_call,
    "_pdist_backward": _pdist_backward,
    "_cdist_backward": _cdist_backward,
    "unfold_backward": _unfold_backward,
    **dict.fromkeys(_FOURIER, _of("cuFFT")),
    **dict.fromkeys(_ALGEBRA, _of("cuSOLVER")),
    "embedding_dense_backward": _embedding,
    "_embedding_bag_dense_backward": _embedding_bag,
}
