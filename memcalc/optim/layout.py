"""How a parameter, its gradient and its states become flat tensors that run in parallel."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One parameter's part of a batch; n elements, all flat tensors in the same order.

    Attributes:
        laid_out: The parameter itself, or a copy of it in its state's layout.
        copies: Whether it holds a copy of the parameter or of the gradient.
        param: ``laid_out`` as (n,).
        grad: The gradient as (n,), in the same order.
        state: The state's tensors by name, flat.
        ordinal: The parameter's place in the optimizer.
    """

    laid_out: Tensor
    copies: bool
    param: Tensor
    grad: Tensor
    state: dict[str, Tensor]
    ordinal: int


def local(tensor: Tensor) -> Tensor:
    """Give this rank's part of a DTensor, and any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def flat(tensor: Tensor) -> Tensor:
    """View a dense tensor, in whatever order of dimensions, as (n,) in order of memory."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,))


def work_on(param: Tensor, grad: Tensor, state: dict[str, Tensor], ordinal: int) -> Work:
    """Lay a parameter and its gradient out like its state, by views where that is possible.

    Args:
        param: Local, any strides.
        grad: Local, any strides and floating dtype.
        state: Not empty; its first tensor is dense and of the parameter's shape.
        ordinal: The parameter's place in the optimizer.
    """
    like = next(iter(state.values()))
    laid_out, laid_out_grad = _like(param, like), _like(grad, like)
    return Work(
        laid_out=laid_out,
        copies=laid_out is not param or laid_out_grad is not grad,
        param=flat(laid_out),
        grad=flat(laid_out_grad),
        state={name: flat(tensor) for name, tensor in state.items()},
        ordinal=ordinal,
    )


def _like(tensor: Tensor, like: Tensor) -> Tensor:
    if tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous()):
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
