"""The kernels' formulas by name, so that a call can be written down and answered later.

A call holds whole numbers read from shapes; with a target it becomes the bytes the kernel takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from memcalc.kernels import (
    alike,
    blas,
    convolution,
    cub,
    gathering,
    grouped,
    indexing,
    norms,
    recurrent,
    reduction,
)
from memcalc.kernels.attention import cudnn as cudnn_attention
from memcalc.kernels.attention import fused as fused_attention
from memcalc.kernels.scratch import Allocations, later, nested
from memcalc.kernels.target import Target
from memcalc.records.trace import Bound


class KernelCall(msgspec.Struct, frozen=True):
    """One kernel call: a formula's name and its arguments but for the target."""

    name: str
    args: tuple[Any, ...] = ()
    """Numbers and (nested) tuples of numbers."""


class Scratch(msgspec.Struct, frozen=True):
    """Made before and after the outputs are allocated; indices count through both."""

    before: Allocations = ()
    after: Allocations = ()


def scratch(call: KernelCall, target: Target) -> Scratch:
    """What the kernel takes beside its outputs on this target."""
    return _FORMULAS[call.name](target, *call.args)


def uncounted(calls: Iterable[KernelCall], target: Target) -> tuple[str, ...]:
    """What these calls take that nobody knows, in words."""
    said = dict.fromkeys(_missing(call, target) for call in calls)
    return tuple(sentence for sentence in said if sentence)


_RAGGED_SINCE, _PLACE = (2, 15), 8
"""PyTorch whose chunks are counted tensor by tensor, and the bytes that say where one begins."""
_UNTOLD = {
    "cuSPARSE": "cuSPARSE's workspaces of sparse products",
    "cuFFT": "cuFFT's workspaces of Fourier transforms",
    "cuSOLVER": "workspaces of linear algebra (cuSOLVER, MAGMA, and copies that it is given)",
}


def _missing(call: KernelCall, target: Target) -> str | None:
    if call.name in ("sort", "topk") and not indexing.is_sort_known(target, *call.args):
        return "counters of sorting long rows of numbers of 8 or 16 bit (1 to 2 MB)"
    if call.name == "untold":
        return _UNTOLD[call.args[0]]
    if call.name == "convolution":
        problem = _problem(*call.args)
        if convolution.workspace(*problem, target) is None:
            return convolution.UNKNOWN if alike.limits(*problem, target) is None else None
    return None


def bounds(calls: Iterable[KernelCall], target: Target) -> tuple[Bound, ...]:
    """What these calls take that is known within limits only; one for each likely size."""
    found: dict[int, Bound] = {}
    for call in calls:
        if call.name != "convolution":
            continue
        problem = _problem(*call.args)
        known = convolution.workspace(*problem, target)
        within = alike.limits(*problem, target) if known is None else None
        if within is not None:
            old = found.get(within.likely)
            found[within.likely] = Bound(
                bytes=within.likely,
                least=min(within.least, old.least) if old else within.least,
                most=max(within.most, old.most) if old else within.most,
            )
    return tuple(found.values())


def _reduction(
    target: Target,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    accumulator_bytes: int,
    cast: int = 0,
) -> Scratch:
    """``cast``: bytes of the input in the type that is summed, where that is another."""
    described = reduction.describe(shape, strides, dims, accumulator_bytes)
    staged = reduction.staging(described, target)
    return Scratch(after=(cast, *later(staged, 1), ~0) if cast else staged)


def _group_norm(target: Target, moments: int, scale: int, point: bool) -> Scratch:
    """``moments``: bytes of each moment in fp32, for 16-bit inputs; ``scale``: of a channel's.

    ``point``: a channel has one number, which is scaled as others are from 2.15 on.
    Source: aten/src/ATen/native/cuda/group_norm_kernel.cu; moments are widened in 2.13, not in
    2.11 (2.12 was not looked at); 2.15 recorded.
    """
    widened = (moments, moments) if moments and target.torch >= (2, 13) else ()
    scaled = (scale, scale) if scale and (not point or target.torch >= (2, 15)) else ()
    return Scratch(after=nested(*widened, *scaled))


def _group_norm_backward(
    target: Target, each: int, group: int, scaled: bool, point: bool
) -> Scratch:
    """Two sums for each channel, two numbers for each group, and the channels' scale.

    Source: aten/src/ATen/native/cuda/group_norm_kernel.cu (2.11 and 2.13; 2.14 recorded).
    """
    if point and target.torch == (2, 14):
        return Scratch(after=nested(group, group))
    if not scaled:
        return Scratch(after=nested(each, each, group, group))
    return Scratch(after=(each, each, group, group, each, ~3, ~2, ~4, ~1, ~0))


def _batch_norm(
    target: Target, own: Allocations, last: tuple[int, int, bool] | tuple[()] = ()
) -> Scratch:
    """``own``: of PyTorch's kernel; ``last``: rows, channels, fp16, where channels lie last."""
    if not target.cudnn:
        return Scratch(after=own)
    return Scratch(after=_norm(target, norms.forward(*last[:2], half=last[2])) if last else ())


def _batch_norm_backward(
    target: Target, copied: int, last: tuple[int, int] | tuple[()] = ()
) -> Scratch:
    """``copied``: bytes of a gradient that lies otherwise than the input, held to the end."""
    if not target.cudnn:
        return Scratch()
    taken = _norm(target, norms.backward(*last)) if last else ()
    return _behind((copied,) if copied else (), taken)


def _norm(target: Target, size: int) -> Allocations:
    """Before 7.0 cuDNN has no kernel for channels that lie last in fp32 (and it is Pascal)."""
    return nested(size) if target.capability >= (7, 0) else ()


def _index_put(target: Target, count: int, indices: int, rows: int) -> Scratch:
    return Scratch(after=indexing.index_put_sorted(count, indices, rows, target))


def _sort(target: Target, elements: int, along: int, key_bytes: int, in_rows: bool) -> Scratch:
    return Scratch(after=indexing.sort(elements, along, key_bytes, in_rows, target))


def _topk(target: Target, elements: int, along: int, key_bytes: int, in_rows: bool) -> Scratch:
    """What was chosen is sorted into other places, and its indices are gathered by those."""
    places, keys = elements * indexing.INDEX, elements * key_bytes
    sorted_ = indexing.sort(elements, along, key_bytes, in_rows, target)
    taken = 2 + sum(word > 0 for word in sorted_)
    return Scratch(after=(places, keys, *later(sorted_, 2), places, ~taken, ~1, ~0))


def _randperm(target: Target, count: int, element_bytes: int) -> Scratch:
    return Scratch(after=indexing.randperm(count, element_bytes, target))


def _masked_scatter(target: Target, count: int, mask: int, source: int) -> Scratch:
    """Places in the source, which are running sums of the mask; what has gaps is copied."""
    sums = cub.scan(count, 8) if count else 0
    copied = (count * 8, mask) if mask else (count * 8,)
    first = len(copied)
    later = (source, ~(first + 1)) if source else ()
    return Scratch(after=(*copied, sums, ~first, *later, *(~n for n in reversed(range(first)))))


def _split_copy(target: Target, pieces: tuple[int, ...], chunks: int) -> Scratch:
    return Scratch(gathering.split_copy(pieces, chunks, target))


def _grouped_mm(target: Target, groups: int, size: tuple[int, int], shared: int) -> Scratch:
    return Scratch(after=grouped.grouped_mm(groups, size, shared, target))


def _scan(target: Target, count: int, element_bytes: int, copied: int = 0) -> Scratch:
    taken = (*([copied] if copied else []), *([cub.scan(count, element_bytes)] if count else []))
    return Scratch(after=(*taken, *(~n for n in reversed(range(len(taken))))))


def _flash_forward(
    target: Target, query: tuple[int, int, int, int], k_len: int, dropout: float
) -> Scratch:
    return Scratch(after=fused_attention.flash_forward(query, k_len, dropout, target))


def _flash_backward(
    target: Target,
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    element: int,
    copies: tuple[int, ...],
) -> Scratch:
    return _behind(copies, nested(*fused_attention.flash_backward(query, key, element)))


def _behind(copies: tuple[int, ...], after: Allocations) -> Scratch:
    """``copies``: bytes of what is copied first and held to the end."""
    first = len(copies)
    freed = tuple(~number for number in reversed(range(first)))
    return Scratch(copies, (*later(after, first), *freed))


def _efficient_forward(
    target: Target, query: tuple[int, int, int, int], value_dim: int, element: int
) -> Scratch:
    return Scratch(after=fused_attention.efficient_forward(query, value_dim, element))


def _efficient_backward(
    target: Target,
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value_dim: int,
    element: int,
    copies: tuple[int, ...],
) -> Scratch:
    taken = fused_attention.efficient_backward(query, key, value_dim, element, target)
    return _behind(copies, taken)


def _cudnn_forward(target: Target) -> Scratch:
    return Scratch(after=cudnn_attention.forward(target))


def _cudnn_backward(
    target: Target,
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value_dim: int,
    grad_copy: int,
) -> Scratch:
    return Scratch(after=cudnn_attention.backward(query, key, value_dim, grad_copy, target))


def _convolution(target: Target, direction: int, *sizes: Any) -> Scratch:
    problem = _problem(direction, *sizes)
    taken = convolution.workspace(*problem, target)
    within = alike.limits(*problem, target) if taken is None else None
    return Scratch(after=nested(within.likely if within is not None else taken or 0))


def _problem(direction: int, *sizes: Any) -> tuple[int, convolution.Problem | None]:
    return direction, sizes if sizes else None


def _embedding_backward(
    target: Target,
    indices: int,
    rows: int,
    width: int,
    index_bytes: int,
    copies: tuple[int, ...],
    bag: bool,
    by_frequency: bool,
) -> Scratch:
    """``copies``: bytes of what is copied first and held to the end."""
    before, after = indexing.embedding_backward(
        indices, rows, width, index_bytes, target, bag=bag, by_frequency=by_frequency
    )
    first = len(copies)
    freed = tuple(~number for number in reversed(range(first)))
    return Scratch((*copies, *later(before, first)), (*later(after, first), *freed))


def _foreach_norm(target: Target, count: int, most: int, chunks: int, partial: int) -> Scratch:
    """For every tensor as many chunks as the largest has; from 2.15 on its own, and where they are.

    Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_norm_cuda`` (2.11 and
    2.13); seen with 2.14 and 2.15.
    """
    if target.torch < _RAGGED_SINCE:
        return Scratch((count * most * partial,), (~0,))
    return Scratch((_PLACE * (count + 1), chunks * partial), (~1, ~0))


def _fixed(target: Target, before: Allocations, after: Allocations) -> Scratch:
    """What takes the same on every target is written down as it is."""
    return Scratch(before, after)


def _recurrent(
    target: Target, layers: tuple[Any, ...], given: tuple[Any, ...], train: bool, backward: bool
) -> Scratch:
    """``layers`` and ``given``: the fields of ``recurrent.Layers`` and ``recurrent.Sequences``."""
    described = recurrent.Layers(
        **dict(zip(recurrent.Layers.__struct_fields__, layers, strict=True))
    )
    lengths = recurrent.Sequences(
        **dict(zip(recurrent.Sequences.__struct_fields__, given, strict=True))
    )
    taken = recurrent.workspace(described, lengths, target, train=train, backward=backward)
    return Scratch(before=(taken,))


def _cudnn_dropout(target: Target) -> Scratch:
    """A seed is drawn first, and read."""
    return Scratch(before=(8, ~0, recurrent.dropout_states(target)))


def _cublas(target: Target) -> Scratch:
    return _workspace(blas.workspace(target), target)


def _cublaslt(target: Target) -> Scratch:
    return _workspace(blas.lt_workspace(target), target)


def _workspace(size: int, target: Target) -> Scratch:
    if not size:
        return Scratch()
    return Scratch(before=(size,) if blas.is_kept(target.torch) else (size, ~0))


_FORMULAS: dict[str, Callable[..., Scratch]] = {
    "reduction": _reduction,
    "flash_forward": _flash_forward,
    "flash_backward": _flash_backward,
    "efficient_forward": _efficient_forward,
    "efficient_backward": _efficient_backward,
    "cudnn_forward": _cudnn_forward,
    "cudnn_backward": _cudnn_backward,
    "convolution": _convolution,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "embedding_backward": _embedding_backward,
    "group_norm": _group_norm,
    "group_norm_backward": _group_norm_backward,
    "index_put": _index_put,
    "sort": _sort,
    "topk": _topk,
    "randperm": _randperm,
    "masked_scatter": _masked_scatter,
    "split_copy": _split_copy,
    "chunk_cat": lambda target, pieces: Scratch(gathering.chunk_cat(pieces)),
    "grouped_mm": _grouped_mm,
    "scan": _scan,
    "coalesce_sort": lambda _, count: Scratch((cub.merge_sort_pairs(count), ~0)),
    "coalesce_unique": lambda target, count: Scratch((cub.thrust_unique(count, target), ~0)),
    "foreach_norm": _foreach_norm,
    "fixed": _fixed,
    "untold": lambda *_: Scratch(),
    "recurrent": _recurrent,
    "cudnn_dropout": _cudnn_dropout,
    "cublas": _cublas,
    "cublaslt": _cublaslt,
}
