"""Gradients of views that a program wrote to: ``view.relu_()``, an instance norm's ReLU in place.

A view that is written to gets another node in autograd's graph. Of a real tensor that is
``AsStridedBackward0``, which lays its gradient in new memory of the size of what it is a view of.
A tensor subclass, as fake tensors are, is taken for one whose memory cannot be looked at: the views
are made once more, and their nodes make views of the gradient. Those nodes are found by their
numbers here, and the first of them to run takes the memory.

Source: torch/csrc/autograd/variable.cpp, ``rebase_history`` and ``VariableHooks::grad_fn``;
FunctionsManual.cpp, ``as_strided_backward``; gen_inplace_or_view_type.py (2.13).
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch

from memcalc.trace.outcomes import alias
from memcalc.trace.torch_private.dispatch import below_autograd
from memcalc.trace.torch_private.engine import (
    current_backward,
    input_shape,
    next_node_number,
    node_number,
)

_aten = torch.ops.aten
UNDO_VIEWS = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten._reshape_alias.default,
    _aten.clone.default,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.t.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
    _aten.sum.dim_IntList,
    _aten.slice_backward.default,
    _aten.select_backward.default,
    _aten.diagonal_backward.default,
    _aten.unfold_backward.default,
}
"""Operators that the gradients of views are made of."""
_VIEWS = {
    f"{name}Backward{number}"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "Permute", "Transpose", "T", "Squeeze"),
        *("Unsqueeze", "Expand", "Slice", "Select", "Diagonal", "Unfold", "Alias"),
    )
    for number in range(3)
}
_WRITTEN = "torch::autograd::CopySlices"
"""The node of what was written to by way of a view; those of the view are numbered from there."""
_MOST = 1 << 16
"""Views that are remembered."""


class WrittenViews:
    """Knows which views were written to, and the last whose gradient has its memory."""

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[int, ...]] = {}
        """Of those views, by the number of the node that stands for the writing."""
        self._laid: tuple[int, int] | None = None

    def meet(self, target: Any) -> None:
        """Something is written to, and autograd takes note of it."""
        if isinstance(target, torch.Tensor) and target._is_view():
            self._shapes[next_node_number()] = tuple(target.shape)
            if len(self._shapes) > _MOST:
                del self._shapes[next(iter(self._shapes))]

    def written_by(self, node: Any) -> Any:
        """The node of what such a view is a part of; ``None``: this is no node of such a view.

        Args:
            node: where backward is; ``None``: nowhere.
        """
        above, after = [], node
        while after is not None and after.name() in _VIEWS:
            above.append(after)
            after = after.next_functions[0][0]
        if not above or after is None or after.name() != _WRITTEN:
            return None
        number = node_number(after)
        shape = self._shapes.get(number)
        if shape is None or node_number(node) - number != len(above):
            return None
        # A view of the one that was written to may have the next number.
        return None if any(input_shape(one) == shape for one in above[1:]) else after

    def undo(
        self,
        written: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        recording: AbstractContextManager[Any],
    ) -> torch.Tensor:
        """What an operator makes, in the memory of the gradient: taken now, or before.

        Args:
            written: what ``written_by`` found.
            func: of ``UNDO_VIEWS``.
            args: of the operator; the gradient comes first.
            kwargs: the others.
            recording: memory that is taken inside is counted.
        """
        shape = func(*args, **kwargs).shape
        grad: torch.Tensor = args[0]
        laid = current_backward(), node_number(written)
        if laid != self._laid:
            self._laid = laid
            with recording:
                grad = grad.new_zeros(math.prod(input_shape(written)))
            if not torch.is_grad_enabled():
                _forget_where_from(written)
        strides = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
        return grad.as_strided(shape, strides, 0)


def _forget_where_from(written: Any) -> None:
    """What that node is given is no view any more: a view holds the gradient that it is one of."""

    def before(grads: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        once.remove()
        with below_autograd():
            return tuple(alias(grad) for grad in grads)

    once = written.register_prehook(before)
