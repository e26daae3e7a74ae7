"""Arguments of operators that CUDA wants of one type, which fake tensors do not look at."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from memcalc.trace.operators.scalar_types import c_name_of, name_of


class _Pair(NamedTuple):
    """Two arguments that must be of one type, and what is said where they are not."""

    first: int
    second: int
    words: str
    """With ``{0}`` and ``{1}`` for the types, ``{c0}`` and ``{c1}`` for those of C++."""


def _scalar_types(first: int, *others: int) -> tuple[_Pair, ...]:
    return tuple(_Pair(first, other, "expected scalar type {0} but found {1}") for other in others)


_OF_PRODUCTS = (
    _Pair(0, 2, "self and mat2 must have the same dtype, but got {0} and {1}"),
    _Pair(1, 2, "mat1 and mat2 must have the same dtype, but got {0} and {1}"),
)
_WITH_VECTOR = "addmv input tensors must have the same dtype, but got {0} and {1}"
_VECTORS = _Pair(0, 1, "dot : expected both vectors to have same dtype, but found {0} and {1}")
_PARTS = _Pair(
    0, 1, "Expected object of scalar type {0} but got scalar type {1} for second argument"
)
_FOUND = _Pair(0, 1, "Found dtype {1} but expected {0}")
_PUT = _Pair(
    *(0, 2),
    "Index put requires the source and destination dtypes match, got {0} for the destination "
    "and {1} for the source.",
)
PAIRS: dict[str, tuple[_Pair, ...]] = {
    "mm": (_Pair(0, 1, "expected mat1 and mat2 to have the same dtype, but got: {c0} != {c1}"),),
    "bmm": _scalar_types(0, 1),
    "addmm": _OF_PRODUCTS,
    "addbmm": _OF_PRODUCTS,
    "baddbmm": (
        _Pair(0, 1, "Input dtypes must be the same, got: input {c0}, batch1: {c1}"),
        *_scalar_types(1, 2),
    ),
    "mv": (_Pair(0, 1, _WITH_VECTOR),),
    "addmv": (_Pair(0, 1, _WITH_VECTOR), _Pair(0, 2, _WITH_VECTOR)),
    "dot": (_VECTORS,),
    "vdot": (_VECTORS,),
    "convolution": (
        _Pair(0, 1, "Input type ({c0}) and weight type ({c1}) should be the same"),
        _Pair(0, 2, "Input type ({c0}) and bias type ({c1}) should be the same"),
    ),
    "native_layer_norm": _scalar_types(0, 2, 3),
    "native_group_norm": _scalar_types(0, 1, 2),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _scalar_types(0, 2)),
    "grid_sampler_2d": _scalar_types(0, 1),
    "grid_sampler_3d": _scalar_types(0, 1),
    "_embedding_bag": _scalar_types(0, 6),
    "_embedding_bag_forward_only": _scalar_types(0, 6),
    "binary_cross_entropy": (_FOUND,),
    "huber_loss_backward": (_Pair(1, 2, _FOUND.words),),
    "linalg_cross": (_FOUND,),
    "complex": (_PARTS,),
    "polar": (_PARTS,),
    "heaviside": (
        _Pair(0, 1, "heaviside is not yet implemented for tensors with different dtypes."),
    ),
    "index_add": (
        _Pair(
            *(0, 3),
            "index_add_(): self ({0}) and source ({1}) must have the same scalar type",
        ),
    ),
    "index_reduce": (
        _Pair(
            *(0, 3),
            "index_reduce_(): self ({0}) and source ({1}) must have the same scalar type",
        ),
    ),
    "index_copy": (
        _Pair(
            *(0, 3),
            "index_copy_(): self and source expected to have the same dtype, but got (self) {0} "
            "and (source) {1}",
        ),
    ),
    "index_put": (_PUT,),
    "_index_put_impl": (_PUT,),
    "put": (
        _Pair(
            *(0, 2),
            "put_(): self and source expected to have the same dtype, but got self.dtype = {0} "
            "and source.dtype = {1}",
        ),
    ),
}
"""By operator, without the mark of those that write in place."""


def check_pairs(pairs: tuple[_Pair, ...], args: tuple[Any, ...]) -> None:
    """Raise ``RuntimeError`` in PyTorch's words where two are of other types."""
    for first, second, words in pairs:
        one, other = dense(args, first), dense(args, second)
        if one is not None and other is not None and one.dtype != other.dtype:
            kinds = one.dtype, other.dtype
            c0, c1 = map(c_name_of, kinds)
            raise RuntimeError(words.format(*map(name_of, kinds), c0=c0, c1=c1))


def dense(args: tuple[Any, ...], place: int) -> torch.Tensor | None:
    """A tensor that is no sparse one, at this place among arguments."""
    found = args[place] if place < len(args) else None
    return found if isinstance(found, torch.Tensor) and found.layout is torch.strided else None
