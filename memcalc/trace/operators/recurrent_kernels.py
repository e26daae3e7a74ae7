"""What cuDNN's recurrent kernels make and take, forward and backward.

Source: aten/src/ATen/native/cudnn/RNN.cpp (``_cudnn_rnn``, ``_cudnn_rnn_backward``), 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.recurrent import Layers, Sequences, reserve, weights
from memcalc.trace.operators.recurrent_weights import described, views_of
from memcalc.trace.torch_private.dispatch import recorder_in_use


def forward(
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
    layers = described(mode, data, data.shape[-1], hidden, projected, count, both)
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


def backward(
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
    layers = described(mode, data, data.shape[-1], hidden, projected, count, both)
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
        grads: list[torch.Tensor] = views_of(dw, layers, bias, params)
        if not bias:
            # There are fewer parameters than the buffer has room for: they are copied.
            grads = [grad.clone() for grad in grads]
    del x
    return grads
