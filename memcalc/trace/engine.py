"""What the autograd engine would do with real tensors and cannot do with fake ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.operators.sparse_parts import parts
from memcalc.trace.streams import switched
from memcalc.trace.torch_private.engine import (
    called_from_engine,
    current_node,
    is_held_by_engine_alone,
)
from memcalc.trace.torch_private.tensors import is_owned_once

_aten = torch.ops.aten


def accumulates(
    node: Any, args: tuple[Any, ...], was_made_in: Callable[[torch.Tensor, Any], bool]
) -> bool:
    """Would autograd sum these two gradients in place, were they not fake?

    Where gradients meet, the engine adds them in place unless they are tensor subclasses, as
    fake tensors are. It calls from C++, so there is no Python frame above ours; neither is there
    where a node's own formula adds, to what it has made itself. Two gradients that a node has made
    meet where it was given the same twice.
    Source: torch/csrc/autograd/input_buffer.cpp, ``accumulate``, ``can_accumulate_inplace``.
    """
    if node is None or len(args) != 2 or torch.is_grad_enabled():
        return False
    if not isinstance(args[1], torch.Tensor) or not called_from_engine(sys._getframe(1)):
        return False
    old, new = args
    alike = old.shape == new.shape and old.dtype is new.dtype
    if not (alike and is_owned_once(old) and is_held_by_engine_alone(old)):
        return False
    return not was_made_in(old, node) or _is_given_twice(node)


def _is_given_twice(node: Any) -> bool:
    """Some gradients of a node go to the same one."""
    after = [one for one in node.next_functions if one[0] is not None]
    return len(set(after)) < len(after)


def taker(node: Any, args: tuple[Any, ...]) -> Any:
    """The node on whose stream an addition runs: where gradients meet, the one that takes the sum.

    That is another stream where the program made views of a parameter on one, as FSDP1 does of
    what it has gathered. Any other addition runs on the stream of the node itself.
    Source: torch/csrc/autograd/input_buffer.cpp, ``InputBuffer::add`` (2.13).
    """
    if node is None or len(args) != 2 or torch.is_grad_enabled() or not switched():
        return node
    if not isinstance(args[1], torch.Tensor) or not called_from_engine(sys._getframe(1)):
        return node
    shape = args[0].shape
    for after, number in node.next_functions:
        taken = getattr(after, "_input_metadata", ())
        if len(taken) > number and tuple(taken[number].shape) == shape:
            return after
    return node


IN_PLACE = {
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_fill.int_Tensor: _aten.index_fill_.int_Tensor,
    _aten.masked_scatter.default: _aten.masked_scatter_.default,
    _aten.put.default: _aten.put_.default,
    _aten.index_put.default: _aten.index_put_.default,
}


_SPREAD = "MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"
"""Nodes whose formula spreads a gradient over all that equals one value."""
_FORMULAS = {
    "BinaryCrossEntropyBackward0": {_aten.mul.Tensor: _aten.mul_.Tensor},
    "BinaryCrossEntropyWithLogitsBackward0": {
        _aten.sub.Tensor: _aten.sub_.Tensor,
        _aten.mul.Tensor: _aten.mul_.Tensor,
        _aten.div.Tensor: _aten.div_.Tensor,
    },
    "ClampBackward0": {
        _aten.logical_and.default: _aten.logical_and_.default,
        _aten.logical_or.default: _aten.logical_or_.default,
    },
    **{node: {_aten.logical_and.default: _aten.logical_and_.default} for node in _SPREAD},
}
"""Nodes whose formula goes on in place with what it has made, but for subclasses of tensors."""
_NEVER = {
    *("ScatterReduceBackward0", "IndexReduceBackward0", "MaskedScatterBackward0"),
    *("ScatterBackward0", "ScatterBackward1", "IndexPutBackward0", "PutBackward0"),
    *("IndexFillBackward0", "IndexFillBackward1", "IndexCopyBackward0"),
    # It gives a copy of the view's gradient to one of these, or of others that write nothing.
    "torch::autograd::CopySlices",
}
"""Nodes whose formula never writes into what it has made, or into the gradient that it is given."""
_BEGINS = {
    "BinaryCrossEntropyBackward0": ("logit",),
    "BinaryCrossEntropyWithLogitsBackward0": ("sigmoid", "add"),
    "ClampBackward0": ("lt", "gt", "ge"),
    **dict.fromkeys(_SPREAD, ("isnan",)),
}
"""The operators that make it."""
_SUMS = "RenormBackward0"
"""The node whose formula asks for the type that a device sums in: float32 itself on CUDA."""


IN_FORMULAS = {func for formula in _FORMULAS.values() for func in formula}
"""Operators that some formula goes on in place with."""


def in_formula() -> bool:
    """Such a formula runs now."""
    node = current_node()
    return node is not None and node.name() in _FORMULAS


def in_place(func: Any, node: Any, made_by: Callable[[], str]) -> Any:
    """What writes into its first argument instead, where such a formula would; else ``None``.

    Args:
        func: an operator.
        node: of autograd's graph; ``None`` outside of backward.
        made_by: tells the operator by which this node made the storage of the first argument.
    """
    if node is not None and node.name() in _NEVER:
        return None
    if func in IN_PLACE:
        return IN_PLACE[func]
    formula = _FORMULAS.get(node.name()) if node is not None else None
    if formula is None or func not in formula or made_by() not in _BEGINS[node.name()]:
        return None
    return formula[func]


def writes_in_place(func: Any, node: Any, args: tuple[Any, ...]) -> bool:
    """Would the gradient's formula write into the zeros it just made, were they not fake?

    It does so for a gradient that is differentiated again as well, which keeps places alone; what
    keeps its factors is another matter.

    Source: torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native, where formulas ask
    ``areAnyTensorSubclassLike`` (2.13).
    """
    if node is None or not isinstance(args[0], torch.Tensor):
        return False
    if torch.is_grad_enabled() and func not in IN_PLACE:
        return False
    return called_from_engine(sys._getframe(1)) and is_owned_once(args[0])


def sums_wider(node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does a formula sum float32 in float64 here, as it would not on CUDA?

    Source: aten/src/ATen/AccumulateType.h (2.13).
    """
    if kwargs.get("dtype") is not torch.float64 or node is None or node.name() != _SUMS:
        return False
    return args[0].dtype is torch.float32


_LEAF = "torch::autograd::AccumulateGrad"


def keeps_sparse_gradient(node: Any, gradient: torch.Tensor) -> bool:
    """Would a leaf keep this first gradient, where it clones that of fake tensors?

    It does if indices and values lie in rows and nobody else holds them, which cannot be told of
    fake ones: asking for them makes another holder. Source: accumulate_grad.h (2.13).
    """
    if node is None or node.name() != _LEAF or torch.is_grad_enabled():
        return False
    alone = called_from_engine(sys._getframe(1))
    return alone and all(part.is_contiguous() for part in parts(gradient))
