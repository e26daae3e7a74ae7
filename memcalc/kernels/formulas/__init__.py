"""The kernels' formulas by name, so that a call can be written down and answered later.

A call holds whole numbers read from shapes; with a target it becomes the bytes the kernel takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from memcalc.kernels import alike, blas, convolution, cub, gathering, grouped, recurrent, reduction
from memcalc.kernels import indexing as index_kernels
from memcalc.kernels.formulas import attention, indexing, norms
from memcalc.kernels.scratch import Allocations, Formula, Scratch, later, nested
from memcalc.kernels.target import Target
from memcalc.records.trace import Bound


class KernelCall(msgspec.Struct, frozen=True):
    """One kernel call: a formula's name and its arguments but for the target."""

    name: str
    args: tuple[Any, ...] = ()
    """Numbers and (nested) tuples of numbers."""


def scratch(call: KernelCall, target: Target) -> Scratch:
    """What the kernel takes beside its outputs on this target."""
    return _FORMULAS[call.name](target, *call.args)


def uncounted(calls: Iterable[KernelCall], target: Target) -> tuple[str, ...]:
    """What these calls take that nobody knows, in words."""
    said = dict.fromkeys(_missing(call, target) for call in calls)
    return tuple(sentence for sentence in said if sentence)


_UNTOLD = {
    "jagged": "what attention over jagged tensors takes for its backward",
    "cuSPARSE": "cuSPARSE's workspaces of sparse products",
    "cuFFT": "cuFFT's workspaces of Fourier transforms",
    "cuSOLVER": "workspaces of linear algebra (cuSOLVER)",
}


_BESIDE = {"algebra": "cuSOLVER", "fourier": "cuFFT"}
"""Calls whose own part is known, and the library whose workspaces are not."""


_SORTS: dict[str, Callable[..., bool]] = {
    "sort": index_kernels.is_sort_known,
    "topk": index_kernels.is_sort_known,
    "sort_keys": lambda target, count, size, real: cub.knows_keys(count, size, real, target),
    "sort_pairs": lambda target, count, size: cub.knows_pairs(
        count, size, index_kernels.INDEX, target
    ),
}
"""Whether all that a sort takes is known."""


def _missing(call: KernelCall, target: Target) -> str | None:
    known = _SORTS.get(call.name)
    if known is not None and not known(target, *call.args):
        return "counters of sorting long rows of numbers of 8 or 16 bit (1 to 2 MB)"
    if call.name in _BESIDE or call.name == "untold":
        named = _BESIDE.get(call.name) or call.args[0]
        return _UNTOLD.get(named, f"what compiled kernels of {named} take in passing")
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
    element_bytes: int,
    output_bytes: int,
    cast: int = 0,
    made: int = 0,
) -> Scratch:
    """What one reduction takes.

    Args:
        target: the GPU.
        shape: of the input; this and what follows as ``reduction.taken`` has them.
        strides: see there.
        dims: see there.
        accumulator_bytes: see there.
        element_bytes: see there.
        output_bytes: see there.
        cast: bytes of the input in the type that is summed, where that is another.
        made: bytes of an input that the operator itself makes, ahead of its output.
    """
    staged = reduction.taken(
        shape, strides, dims, accumulator_bytes, element_bytes, output_bytes, target
    )
    if made:
        return Scratch((made,), (*later(staged, 1), ~0))
    return Scratch(after=(cast, *later(staged, 1), ~0) if cast else staged)


def _split_copy(target: Target, pieces: tuple[int, ...], chunks: int) -> Scratch:
    return Scratch(gathering.split_copy(pieces, chunks, target))


def _grouped_mm(target: Target, groups: int, size: tuple[int, int], shared: int) -> Scratch:
    return Scratch(after=grouped.grouped_mm(groups, size, shared, target))


def _convolution(target: Target, direction: int, *sizes: Any) -> Scratch:
    problem = _problem(direction, *sizes)
    taken = convolution.workspace(*problem, target)
    within = alike.limits(*problem, target) if taken is None else None
    return Scratch(after=nested(within.likely if within is not None else taken or 0))


def _problem(direction: int, *sizes: Any) -> tuple[int, convolution.Problem | None]:
    return direction, sizes if sizes else None


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
    return _workspace(blas.workspace(target), kept=blas.is_kept(target.torch))


def _cublaslt(target: Target) -> Scratch:
    return _workspace(blas.lt_workspace(target), kept=blas.is_lt_kept(target.torch))


def _workspace(size: int, *, kept: bool) -> Scratch:
    if not size:
        return Scratch()
    return Scratch(before=(size,) if kept else (size, ~0))


_FORMULAS: dict[str, Formula] = {
    **attention.FORMULAS,
    **norms.FORMULAS,
    **indexing.FORMULAS,
    "reduction": _reduction,
    "convolution": _convolution,
    "split_copy": _split_copy,
    "chunk_cat": lambda target, pieces: Scratch(gathering.chunk_cat(pieces)),
    "grouped_mm": _grouped_mm,
    "coalesce_sort": lambda _, count: Scratch((cub.merge_sort_pairs(count), ~0)),
    "coalesce_unique": lambda target, count: Scratch((cub.thrust_unique(count, target), ~0)),
    "fixed": _fixed,
    "untold": lambda *_: Scratch(),
    **dict.fromkeys(_BESIDE, lambda _, taken: Scratch(after=taken)),
    "recurrent": _recurrent,
    "cudnn_dropout": _cudnn_dropout,
    "cublas": _cublas,
    "cublaslt": _cublaslt,
}
