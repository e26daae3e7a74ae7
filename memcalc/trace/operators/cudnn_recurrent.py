"""Layers of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` where cuDNN runs them.

PyTorch decides inside of operators that no dispatch mode sees (``at::lstm``), so the decision is
made here, under the device's autograd key. Sources: aten/src/ATen/native/RNN.cpp (``lstm``),
aten/src/ATen/native/cudnn/RNN.cpp, aten/src/ATen/cudnn/AutocastRNN.cpp and
aten/src/ATen/native/cudnn/Utils.h (2.11 and 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.recurrent import GATES, Layers, Mode, Sequences, reserve, weights
from memcalc.trace import device
from memcalc.trace.torch_private.dispatch import (
    FakeTensor,
    as_composed,
    recorder_in_use,
    without_key,
)
from memcalc.trace.torch_private.tensors import storage_key

_aten = torch.ops.aten
_ACCEPTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FLATTENED = (torch.float16, torch.float32, torch.float64)
"""torch/backends/cudnn/__init__.py, ``CUDNN_TENSOR_DTYPES``: others are copied at every call."""
_MODES = {"rnn_relu": Mode.RELU, "rnn_tanh": Mode.TANH, "lstm": Mode.LSTM, "gru": Mode.GRU}


def _accepts(tensor: torch.Tensor) -> bool:
    """PyTorch's ``cudnn_is_acceptable``."""
    if tensor.device.type != device.NAME or device.NAME == "cpu" or tensor.dtype not in _ACCEPTED:
        return False
    recorder = recorder_in_use()
    if recorder is None or not recorder.runs_cudnn or tensor.numel() == 0:
        return False
    return recorder.bf16 or tensor.dtype is not torch.bfloat16


def _layers(mode: int, like: torch.Tensor, inputs: int, *sizes: Any) -> Layers:
    """``sizes``: hidden, projected, how many layers, both directions."""
    hidden, projected, layers, both = sizes
    return Layers(
        mode=int(mode),
        layers=layers,
        directions=2 if both else 1,
        inputs=inputs,
        hidden=hidden,
        projected=projected,
        element=like.element_size(),
        half=like.dtype is torch.float16,
    )


def _parts(layers: Layers, *, bias: bool) -> Iterator[tuple[int, int]]:
    """Where each parameter begins in the buffer and how many numbers it has, in their order."""
    begin, gates = 0, GATES[Mode(layers.mode)] * layers.hidden
    for layer in range(layers.layers):
        given = layers.output * layers.directions if layer else layers.inputs
        for _ in range(layers.directions):
            matrices, rest = (gates * given, gates * layers.output), (gates, gates)
            last = (layers.hidden * layers.projected,) if layers.projected else ()
            for kind, sizes in enumerate((matrices, rest, last)):
                for size in sizes:
                    if bias or kind != 1:
                        yield begin, size
                    begin += size


def _one_buffer(params: Sequence[torch.Tensor], layers: Layers, bias: bool) -> Any:
    """The buffer that all parameters are views of; ``None``: they lie apart."""
    first, total = params[0], weights(layers)
    together = all(
        storage_key(param) == storage_key(first) and param.storage_offset() == begin
        for param, (begin, _) in zip(params, _parts(layers, bias=bias), strict=True)
    )
    if not together or first.untyped_storage().nbytes() < total * layers.element:
        return None
    return first.detach().as_strided((total,), (1,), 0)


def _views(buffer: torch.Tensor, layers: Layers, bias: bool, like: Sequence[torch.Tensor]) -> Any:
    return [
        buffer.as_strided(param.shape, param.contiguous().stride(), begin)
        for param, (begin, _) in zip(like, _parts(layers, bias=bias), strict=True)
    ]


def flatten(module: torch.nn.RNNBase) -> bool:
    """Put a module's weights into one buffer, as ``RNNBase.flatten_parameters`` does on CUDA.

    Returns:
        Whether they are on the simulated GPU, and so were seen to.
    """
    given = module._flat_weights
    if len(given) != len(module._flat_weights_names):
        return False
    if not all(isinstance(weight, FakeTensor) for weight in given):
        return False
    params: list[Any] = list(given)
    if params[0].device.type != device.NAME or device.NAME == "cpu":
        return False
    same = len({param.dtype for param in params}) == 1 and params[0].dtype in _FLATTENED
    apart = len({(storage_key(param), param.storage_offset()) for param in params}) == len(params)
    if same and apart and all(map(_accepts, params)):
        mode = _MODES[module.mode.lower()]
        sizes = (module.hidden_size, module.proj_size, module.num_layers, module.bidirectional)
        layers = _layers(mode, params[0], module.input_size, *sizes)
        with torch.no_grad():
            buffer = torch.zeros(weights(layers), dtype=params[0].dtype, device=params[0].device)
            for param, view in zip(
                params, _views(buffer, layers, bool(module.bias), params), strict=True
            ):
                view.copy_(param)
                param.set_(view)
    return True


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
    hidden, projected = hx.shape[2], 0
    if cx is not None and cx.shape[2] != hx.shape[2]:
        hidden, projected = cx.shape[2], hx.shape[2]
    described = _layers(mode, params[0], data.shape[-1], hidden, projected, layers, both)
    each = len(params) // (layers * described.directions)
    buffer = _one_buffer(params, described, bias)
    _hold_states(dropout, train)
    params, casts = list(params), torch.is_autocast_enabled(device.NAME)
    if casts and params[0].dtype not in (torch.float16, torch.float64):
        buffer, *params = _Cast.apply(described, bias, *params)  # type: ignore[no-untyped-call]
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
        views = _views(buffer, layers, bias, params)
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
        if not _accepts(data):
            return cells(data, hx, params, *rest)
        states = tuple(hx) if name == "lstm" else (hx, None)
        out = _run(_MODES[name], data, (), *states, params, *rest)
        return out[:3] if name == "lstm" else out[:2]

    return kernel


def _packed(name: str) -> Callable[..., Any]:
    cells = as_composed(getattr(_aten, name).data)

    def kernel(data: torch.Tensor, sizes: torch.Tensor, hx: Any, params: Any, *rest: Any) -> Any:
        if not _accepts(data):
            return cells(data, sizes, hx, params, *rest)
        states = tuple(hx) if name == "lstm" else (hx, None)
        out = _run(_MODES[name], data, sizes.tolist(), *states, params, *rest, False)
        return out[:3] if name == "lstm" else out[:2]

    return kernel


KERNELS: dict[str, Callable[..., Any]] = {
    **{f"{name}.input": _padded(name) for name in _MODES},
    **{f"{name}.data": _packed(name) for name in _MODES},
}
"""What runs under the device's autograd key, by operator."""


def _seen(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """In inference mode the dispatch mode sees the operator itself."""

    def instead(data: torch.Tensor, *rest: Any) -> Any:
        return NotImplemented if device.NAME == "cpu" else kernel(data, *rest)

    return instead


def _forward(
    data: torch.Tensor,
    params: Sequence[torch.Tensor],
    each: int,
    buffer: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    *rest: Any,
) -> Any:
    """``_cudnn_rnn``."""
    hidden, projected, count, batch_first, dropout, train, both, batch_sizes, _ = rest
    swap = batch_first and not batch_sizes
    x = (data.transpose(0, 1) if swap else data).contiguous()
    layers = _layers(mode, data, data.shape[-1], hidden, projected, count, both)
    given = _sequences(x, batch_sizes, train and dropout > 0)
    output = data.new_empty((*x.shape[:-1], layers.output * layers.directions))
    hy = hx.new_empty(hx.shape)
    cy = cx.new_empty(cx.shape) if cx is not None else hx.new_empty(0)
    if buffer is None:
        buffer = data.new_zeros(weights(layers))
    kept = reserve(layers, given) if train else 0
    call = _call(layers, given, train=train, backward=False)
    with recorder_in_use().holding(call):
        space = data.new_empty(kept, dtype=torch.uint8)
    return output.transpose(0, 1) if swap else output, hy, cy, space, buffer


def _sequences(x: torch.Tensor, batch_sizes: Sequence[int], dropout: bool) -> Sequences:
    steps, batch = (len(batch_sizes), batch_sizes[0]) if batch_sizes else x.shape[:2]
    rows = x.shape[0] if batch_sizes else steps * batch
    return Sequences(
        steps=steps, batch=batch, rows=rows, packed=bool(batch_sizes), dropout=bool(dropout)
    )


def _call(layers: Layers, given: Sequences, *, train: bool, backward: bool) -> KernelCall:
    sizes = tuple(getattr(layers, name) for name in layers.__struct_fields__)
    lengths = tuple(getattr(given, name) for name in given.__struct_fields__)
    return KernelCall("recurrent", (sizes, lengths, bool(train), backward))


def _backward(
    data: torch.Tensor,
    params: Sequence[torch.Tensor],
    each: int,
    buffer: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    output: torch.Tensor,
    *rest: Any,
) -> Any:
    """``_cudnn_rnn_backward``: gradients of inputs, always, and then of weights."""
    grads, (mode, *sizes), wanted = rest[:3], rest[3:-2], rest[-1]
    hidden, projected, count, batch_first, dropout, train, both, batch_sizes, _ = sizes
    if all(grad is None for grad in grads):
        return None, None, None, [None] * len(params)
    grad_output, grad_hy, grad_cy = (
        torch.zeros_like(like, memory_format=torch.contiguous_format)
        if grad is None and like is not None
        else grad
        for grad, like in zip(grads, (output, hx, cx), strict=True)
    )
    swap = batch_first and not batch_sizes
    data, grad_output = (
        tensor.transpose(0, 1) if swap else tensor for tensor in (data, grad_output)
    )
    layers = _layers(mode, data, data.shape[-1], hidden, projected, count, both)
    call = _call(
        layers, _sequences(data, batch_sizes, train and dropout > 0), train=True, backward=True
    )
    found = _input_gradients(data, grad_output, grad_hy, grad_cy, hx, cx, call)
    dx = found[0].transpose(0, 1) if swap else found[0]
    dw = _weight_gradients(data, params, each, buffer, layers, call) if wanted[3] else []
    # As C++ lets go of them.
    del grad_cy, grad_hy, grad_output
    return dx, *found[1:], dw


def _input_gradients(
    data: torch.Tensor,
    grad_output: torch.Tensor,
    grad_hy: torch.Tensor,
    grad_cy: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    call: KernelCall,
) -> Any:
    x, dy = data.contiguous(), grad_output.contiguous()
    dx = torch.empty_like(data, memory_format=torch.contiguous_format)
    dhy = grad_hy.contiguous()
    dcy = grad_cy.contiguous() if grad_cy is not None else None
    dhx = hx.new_empty(hx.shape)
    dcx = cx.new_empty(cx.shape) if cx is not None else None
    with recorder_in_use().holding(call):
        pass
    del dcy, dhy, dy, x
    return dx, dhx, dcx


def _weight_gradients(
    data: torch.Tensor,
    params: Sequence[torch.Tensor],
    each: int,
    buffer: torch.Tensor,
    layers: Layers,
    call: KernelCall,
) -> list[torch.Tensor]:
    x = data.contiguous()
    dw = torch.zeros_like(buffer)
    bias = each == (5 if layers.projected else 4)
    with recorder_in_use().holding(call):
        grads: list[torch.Tensor] = _views(dw, layers, bias, params)
        if not bias:
            # There are fewer parameters than the buffer has room for: they are copied.
            grads = [grad.clone() for grad in grads]
    del x
    return grads


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten._cudnn_rnn.default: (_forward, ""),
    _aten._cudnn_rnn_backward.default: (_backward, ""),
    **{
        op: (_seen(KERNELS[f"{name}.{kind}"]), "")
        for name in _MODES
        for kind in ("input", "data")
        for op in (getattr(getattr(_aten, name), kind),)
    },
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
