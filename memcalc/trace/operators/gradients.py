"""Operators whose gradient PyTorch works out otherwise for tensor subclasses, as fake tensors are.

Their formulas ask whether a product has a factor of zero, and take steps for any values where they
may not ask. So the formulas of real CUDA tensors are here, in place of PyTorch's under the
device's autograd key; ``softmax`` asks whether it is CUDA that runs it. Sources:
torch/csrc/autograd/FunctionsManual.cpp, aten/src/ATen/native/ReduceOps.cpp and SoftMax.cpp (2.13).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.operators import release
from memcalc.trace.torch_private.dispatch import below_autograd

NO_ZEROS = "no factor of a product is taken to be zero: the gradient needs more where one is"
LOOKS_FOR_ZEROS = {"CumprodBackward0", "ProdBackward0", "ProdBackward1"}
"""Nodes of PyTorch's own formulas for these, which read whether there are such factors."""
_aten = torch.ops.aten
_assumed: dict[str, None] = {}


def assumed() -> tuple[str, ...]:
    """What the gradients that ran were taken to meet."""
    return tuple(_assumed)


def _product(grad: torch.Tensor, factors: torch.Tensor, out: torch.Tensor, *dim: Any) -> Any:
    """``prod_backward``: zeros are looked for, and there are none."""
    _assumed[NO_ZEROS] = None
    factors = factors.to(grad.dtype)
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
    grad = grad.to(factors.dtype)
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
            found = backward(grads[0], tensor, out, *ctx.rest)
            return found, None, None

    def kernel(tensor: torch.Tensor, *rest: Any, **typed: Any) -> Any:
        if torch.is_grad_enabled() and tensor.requires_grad:
            return Own.apply(tensor, rest, typed)  # type: ignore[no-untyped-call]
        with below_autograd():
            return op(tensor, *rest, **typed)

    return kernel


def _larger(op: Any, loses: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., Any]:
    """The larger of two, or the smaller: equals share the gradient, and who ``loses`` has none.

    Which of the two compares less is nothing to memory.

    Source: tools/autograd/derivatives.yaml, ``maximum`` and ``fmax`` (2.15). C++ works arguments
    out from the last to the first, and frees them when the expression ends.
    """

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            with below_autograd():
                out: torch.Tensor = op(one, other)
            ctx.save_for_backward(one, other)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            one, other = ctx.saved_tensors
            # The other's comes first, as in what PyTorch generates.
            found = [
                _shared(grads[0], one, other, loses) if wanted else None
                for wanted in reversed(ctx.needs_input_grad)
            ]
            return found[1], found[0]

    def kernel(one: torch.Tensor, other: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and (one.requires_grad or other.requires_grad):
            return Own.apply(one, other)  # type: ignore[no-untyped-call]
        with below_autograd():
            return op(one, other)

    return kernel


def _shared(
    grad: torch.Tensor,
    one: torch.Tensor,
    other: torch.Tensor,
    loses: Callable[..., tuple[torch.Tensor, ...]],
) -> torch.Tensor:
    without, half = loses(one, other), grad / 2
    equal = one == other
    out = torch.where(equal, half, grad).masked_fill_(without[0], 0)
    del equal, half, without
    return out


def _loses(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (one < other,)


def _loses_to_numbers(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same of ``fmax`` and ``fmin``, where what is no number loses since 2.15."""
    if not release.is_since(2, 15):
        return _loses(one, other)
    return one <= other, other.isnan()


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


def _mean(op: Any) -> Callable[..., Any]:
    """A mean that keeps what it is of, to know its count of elements.

    Source: tools/autograd/derivatives.yaml, ``mean``, whose ``self.sym_numel()`` no saved number
    stood for (2.0 and 2.1; recorded with 2.0.1, 2.1.2 and 2.2.2).
    """

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, rest: Any, typed: Any) -> torch.Tensor:
            with below_autograd():
                out: torch.Tensor = op(tensor, *rest, **typed)
            ctx.save_for_backward(tensor)
            dims, ctx.kept = rest[0] if rest else None, list(tensor.shape)
            for dim in dims or range(tensor.dim()):
                ctx.kept[dim] = 1
            return out

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            (tensor,) = ctx.saved_tensors
            count = tensor.numel() // max(math.prod(ctx.kept), 1)
            return grads[0].reshape(ctx.kept).expand(tensor.shape) / count, None, None

    def kernel(tensor: torch.Tensor, *rest: Any, **typed: Any) -> Any:
        if torch.is_grad_enabled() and tensor.requires_grad:
            return Own.apply(tensor, rest, typed)  # type: ignore[no-untyped-call]
        with below_autograd():
            return op(tensor, *rest, **typed)

    return kernel


def of_release() -> dict[str, Callable[..., Any]]:
    """The same for operators whose gradient is another one in some releases."""
    if not release.is_since(2, 2):
        return {"mean": _mean(_aten.mean.default), "mean.dim": _mean(_aten.mean.dim)}
    if not release.is_since(2, 14):
        return {}
    return {
        "maximum": _larger(_aten.maximum.default, _loses),
        "minimum": _larger(_aten.minimum.default, _loses),
        "fmax": _larger(_aten.fmax.default, _loses_to_numbers),
        "fmin": _larger(_aten.fmin.default, _loses_to_numbers),
    }
