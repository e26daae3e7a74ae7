"""What the autograd engine would do with real tensors and cannot do with fake ones."""

from __future__ import annotations

import sys
from typing import Any

import torch

from memcalc.trace.torch_private import called_from_engine, is_owned_once

_aten = torch.ops.aten


def accumulates(node: Any, args: tuple[Any, ...]) -> bool:
    """Would autograd sum these two gradients in place, were they not fake?

    Where gradients meet, the engine adds them in place unless they are tensor subclasses, as
    fake tensors are. It calls from C++, so there is no Python frame above ours.
    Source: torch/csrc/autograd/input_buffer.cpp, ``accumulate``, ``can_accumulate_inplace``.
    """
    if node is None or len(args) != 2 or torch.is_grad_enabled():
        return False
    if not isinstance(args[1], torch.Tensor) or not called_from_engine(sys._getframe(1)):
        return False
    old, new = args
    return old.shape == new.shape and old.dtype is new.dtype and is_owned_once(old)


IN_PLACE = {
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_put.default: _aten.index_put_.default,
    _aten._unsafe_index_put.default: _aten.index_put_.default,
}


def writes_in_place(node: Any, args: tuple[Any, ...]) -> bool:
    """Would the gradient's formula write into the zeros it just made, were they not fake?

    Source: torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native, where formulas ask
    ``areAnyTensorSubclassLike`` (2.13).
    """
    if node is None or torch.is_grad_enabled() or not isinstance(args[0], torch.Tensor):
        return False
    return called_from_engine(sys._getframe(1)) and is_owned_once(args[0])
