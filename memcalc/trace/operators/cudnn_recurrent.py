"""Layers of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` where cuDNN runs them.

PyTorch decides inside of operators that no dispatch mode sees (``at::lstm``), so the decision is
made here, under the device's autograd key. Sources: aten/src/ATen/native/RNN.cpp (``lstm``),
aten/src/ATen/native/cudnn/RNN.cpp (``_cudnn_impl``), aten/src/ATen/cudnn/AutocastRNN.cpp and
aten/src/ATen/native/cudnn/Utils.h (2.11 and 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.recurrent import Layers, Mode, weights
from memcalc.trace import device
from memcalc.trace.operators import mismatched
from memcalc.trace.operators.recurrent_kernels import backward, forward
from memcalc.trace.operators.recurrent_weights import (
    MODES,
    accepts,
    described,
    one_buffer,
    views_of,
)
from memcalc.trace.torch_private.dispatch import as_composed, recorder_in_use, without_key

_aten = torch.ops.aten


def _hold_states(dropout: float, train: bool) -> None:
    if train and dropout > 0:
        recorder_in_use().keep(KernelCall("cudnn_dropout"))


def _run(
    mode: Mode,
    data: torch.Tensor,
    batch_sizes: Sequence[int],
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    params: Sequence[torch.Tensor],
    *rest: Any,
) -> Any:
    """PyTorch's ``_cudnn_impl`` and, inside autocast, ``_cudnn_rnn_cast_reflatten``."""
    bias, layers, dropout, train, both, batch_first = rest
    mismatched.check_recurrent(data, (hx, cx), params)
    hidden, projected = hx.shape[2], 0
    if cx is not None and cx.shape[2] != hx.shape[2]:
        hidden, projected = cx.shape[2], hx.shape[2]
    made = described(mode, params[0], data.shape[-1], hidden, projected, layers, both)
    each = len(params) // (layers * made.directions)
    buffer = one_buffer(params, made, bias)
    _hold_states(dropout, train)
    params, casts = list(params), torch.is_autocast_enabled(device.NAME)
    if casts and params[0].dtype not in (torch.float16, torch.float64):
        buffer, *params = _Cast.apply(made, bias, *params)  # type: ignore[no-untyped-call]
    if casts:
        # It is float16 whatever type autocast was given, and the last argument comes first.
        cx = None if cx is None else _to_half(cx)
        hx = _to_half(hx)
        data = _to_half(data)
    sizes = (hidden, projected, layers, batch_first, dropout, train, both, list(batch_sizes))
    with without_key(autocast_key()):
        return _aten._cudnn_rnn.default(data, params, each, buffer, hx, cx, int(mode), *sizes, None)


def autocast_key() -> str:
    """The device's dispatch key inside autocast."""
    return "AutocastCUDA" if device.NAME == "cuda" else "AutocastPrivateUse1"


def _to_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.to(torch.float16)


class _Cast(torch.autograd.Function):
    """Parameters as float16 in a buffer; gradients go back through the casts."""

    @staticmethod
    def forward(ctx: Any, layers: Layers, bias: bool, *params: torch.Tensor) -> Any:
        ctx.dtype = params[0].dtype
        buffer = torch.zeros(weights(layers), dtype=torch.float16, device=params[0].device)
        views = views_of(buffer, layers, bias, params)
        ctx.mark_non_differentiable(buffer)
        ctx.set_materialize_grads(False)
        return buffer, *(view.copy_(param) for view, param in zip(views, params, strict=True))

    @staticmethod
    def backward(ctx: Any, _: Any, *grads: torch.Tensor) -> Any:
        # Each is a node of the graph to PyTorch; the last made runs first.
        cast = [grad if grad is None else grad.to(ctx.dtype) for grad in reversed(grads)]
        return None, None, *reversed(cast)


def _padded(name: str) -> Callable[..., Any]:
    """``at::lstm`` and its like, of inputs that are not packed."""
    cells = as_composed(getattr(_aten, name).input)

    def kernel(data: torch.Tensor, hx: Any, params: Any, *rest: Any) -> Any:
        if not accepts(data):
            return cells(data, hx, params, *rest)
        states = tuple(hx) if name == "lstm" else (hx, None)
        out = _run(MODES[name], data, (), *states, params, *rest)
        return out[:3] if name == "lstm" else out[:2]

    return kernel


def _packed(name: str) -> Callable[..., Any]:
    cells = as_composed(getattr(_aten, name).data)

    def kernel(data: torch.Tensor, sizes: torch.Tensor, hx: Any, params: Any, *rest: Any) -> Any:
        if not accepts(data):
            return cells(data, sizes, hx, params, *rest)
        states = tuple(hx) if name == "lstm" else (hx, None)
        out = _run(MODES[name], data, sizes.tolist(), *states, params, *rest, False)
        return out[:3] if name == "lstm" else out[:2]

    return kernel


KERNELS: dict[str, Callable[..., Any]] = {
    **{f"{name}.input": _padded(name) for name in MODES},
    **{f"{name}.data": _packed(name) for name in MODES},
}
"""What runs under the device's autograd key, by operator."""


def _seen(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """In inference mode the dispatch mode sees the operator itself."""

    def instead(data: torch.Tensor, *rest: Any) -> Any:
        return NotImplemented if device.NAME == "cpu" else kernel(data, *rest)

    return instead


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten._cudnn_rnn.default: (forward, ""),
    _aten._cudnn_rnn_backward.default: (backward, ""),
    **{
        op: (_seen(KERNELS[f"{name}.{kind}"]), "")
        for name in MODES
        for kind in ("input", "data")
        for op in (getattr(getattr(_aten, name), kind),)
    },
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
