"""Reads what is taken where elements and rows are chosen by indices or masks."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.trace.operators import placed
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed, lies_in_one_row


def _masked_scatter(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    tensor, mask, source = args[:3]
    whole = mask.is_contiguous() and mask.shape == tensor.shape
    copied = 0 if source.is_contiguous() else bytes_of(source)
    sizes = tensor.numel(), 0 if whole else tensor.numel(), copied
    return KernelCall("masked_scatter", sizes) if tensor.numel() else None


def _index_put(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    if not placed.sorts(args):
        return _index(args, out)
    if placed.is_numbered():
        return None
    count, rows, copied = placed.sizes_put(*args[:3])
    given = [index for index in args[1] if index is not None]
    return KernelCall("index_put", (count, len(given), rows, copied))


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
        return None if grad.is_contiguous() else fixed(before=(bytes_of(grad),), after=(~0,))
    return _table_gradient(grad, indices, rows, True, bool(by_frequency))


def _table_gradient(
    grad: torch.Tensor, indices: torch.Tensor, rows: int, bag: bool, by_frequency: bool
) -> KernelCall:
    copies = tuple(bytes_of(t) for t in (indices, grad) if not t.is_contiguous())
    sizes = indices.numel(), rows, grad.shape[-1], indices.element_size()
    how = bag, by_frequency, grad.element_size()
    return KernelCall("embedding_backward", (*sizes, copies, *how))


def _embedding_forward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Indices in a row: a copy, unless they lie so already, with gaps or without.

    Source: aten/src/ATen/native/Embedding.cpp, ``embedding_symint`` (2.13).
    """
    indices = args[1]
    if lies_in_one_row(indices):
        return None
    return fixed(before=(bytes_of(indices),), after=(~0,))


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
    copied = [bytes_of(t) for t in expanded if not t.is_contiguous()]
    return fixed(before=tuple(copied), after=tuple(~number for number in range(len(copied))))


READERS: dict[str, Reader] = {
    "embedding": _embedding_forward,
    "embedding_dense_backward": _embedding,
    "_embedding_bag_dense_backward": _embedding_bag,
    "index": _index,
    "index_put_": _index_put,
    **dict.fromkeys(("masked_scatter", "masked_scatter_"), _masked_scatter),
}
