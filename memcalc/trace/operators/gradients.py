"""Operators whose gradient PyTorch works out otherwise for tensor subclasses, as fake tensors are.

Their formulas ask whether a product has a factor of zero, and take steps for any values where they
may not ask. So the formulas of real CUDA tensors are here, in place of PyTorch's under the
device's autograd key; ``softmax`` asks whether it is CUDA that runs it. Sources:
torch/csrc/autograd/FunctionsManual.cpp, aten/src/ATen/native/ReduceOps.cpp and SoftMax.cpp (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import below_autograd

NO_ZEROS = "no factor of a product is taken to be zero: the gradient needs more where one is"
_aten = torch.ops.aten
_assumed: dict[str, None] = {}


def assumed() -> tuple[str, ...]:
    """What the gradients that ran were taken to meet."""
    return tuple(_assumed)


def _product(grad: torch.Tensor, factors: torch.Tensor, out: torch.Tensor, *dim: Any) -> Any:
    """``prod_backward``: zeros are looked for, and there are none."""
    _assumed[NO_ZEROS] = None
    if factors.dim() == 0:
        return grad * 1
    zeros = factors == 0
    if not dim:
        del zeros
        return grad * (out / factors).conj()
    along, keepdim = (*dim, False)[:2]
    if not keepdim:
        grad, out = grad.unsqueeze(along), out.unsqueeze(along)
    counts = zeros.sum(along, True)
    counts.sum()
    return grad * (out / factors).conj()


def _running_product(
    grad: torch.Tensor, factors: torch.Tensor, out: torch.Tensor, dim: int
) -> torch.Tensor:
    """``cumprod_backward``."""
    if factors.numel() <= 1 or factors.shape[dim] == 1:
        return grad
    _assumed[NO_ZEROS] = None
    weighted = out.conj() * grad
    zeros = factors == 0
    zeros.any()
    turned = weighted.flip(dim)
    summed = turned.cumsum(dim)
    back = summed.flip(dim)
    del summed, turned
    return back / factors.conj()


def _with(op: Any, backward: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that runs an operator and, where a gradient is wanted, this formula for it."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, rest: Any, typed: Any) -> torch.Tensor:
            with below_autograd():
                out: torch.Tensor = op(tensor, *rest, **typed)
            ctx.save_for_backward(tensor, out)
            ctx.rest = rest
            return out

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            tensor, out = ctx.saved_tensors
            found = backward(grads[0].to(tensor.dtype), tensor, out, *ctx.rest)
            return found, None, None

    def kernel(tensor: torch.Tensor, *rest: Any, **typed: Any) -> Any:
        if torch.is_grad_enabled() and tensor.requires_grad:
            return Own.apply(tensor, rest, typed)  # type: ignore[no-untyped-call]
        with below_autograd():
            return op(tensor, *rest, **typed)

    return kernel


def _softmax(below: Any) -> Callable[..., Any]:
    """Of fp16 numbers fp32 shares are made at once, with no copy in fp32 before."""

    def kernel(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        at_once = tensor.dtype is torch.float16 and dtype is torch.float32
        if at_once:
            return below(tensor, dim, True)
        return below(tensor if dtype is None else tensor.to(dtype), dim, False)

    return kernel


KERNELS: dict[str, Callable[..., Any]] = {
    "prod": _with(_aten.prod.default, _product),
    "prod.dim_int": _with(_aten.prod.dim_int, _product),
    "cumprod": _with(_aten.cumprod.default, _running_product),
    "softmax.int": _softmax(_aten._softmax.default),
    "log_softmax.int": _softmax(_aten._log_softmax.default),
}
"""What runs under the device's autograd key, by operator."""
