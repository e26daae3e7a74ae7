"""Convolutions as PyTorch runs them by itself: where cuDNN is switched off, and most depthwise.

Each sample is unfolded into a matrix of columns, in one buffer for all, and multiplied. Here
nothing is computed: the tensors are made and let go in the order in which CUDA does.
Source: aten/src/ATen/native/Convolution.cpp (``select_conv_backend``) and, in
aten/src/ATen/native/cuda, ConvolutionMM2d.cu, NaiveConvolutionTranspose2d.cu and 3d.cu,
NaiveDilatedConvolution.cu and DepthwiseConv2d.cu and 3d.cu (2.11 and 2.13); every kind was
compared with PyTorch's CUDA build, event by event.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from memcalc.trace.operators import depthwise
from memcalc.trace.operators.strides import resized
from memcalc.trace.operators.windows import Shape, Window, bias_of
from memcalc.trace.torch_private.tensors import suggest_memory_format


def forward(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *options: Any
) -> torch.Tensor:
    """``aten::convolution``."""
    if weight.dim() == 3:
        wide = [
            [fill, *values] if isinstance(values, list | tuple) else values
            for fill, values in zip((1, 0, 1, None, 0, None), options, strict=True)
        ]
        return forward(inputs.unsqueeze(2), weight.unsqueeze(2), bias, *wide).squeeze(2)
    window, groups = Window(weight, options), options[-1]
    if not inputs.numel():
        # Source: Convolution.cpp, ``ConvBackend::Empty``, which makes no columns (2.13).
        outer = window.out(tuple(inputs.shape[2:]))
        channels = weight.shape[1] * groups if window.transposed else weight.shape[0]
        return _like(inputs, (inputs.shape[0], channels, *outer))
    if depthwise.is_depthwise(inputs, weight, window.transposed, groups):
        return depthwise.forward(inputs, weight, window)
    inputs, weight = inputs.contiguous(), weight.contiguous()
    if groups == 1:
        out = _forward(inputs, weight, bias, window)
        del weight, inputs
        return out
    parts = zip(
        inputs.chunk(groups, 1),
        weight.chunk(groups, 0),
        bias.chunk(groups, 0) if bias is not None else [None] * groups,
        strict=True,
    )
    out = torch.cat([_forward(*part, window) for part in parts], 1)
    del parts, weight, inputs
    return out


def _forward(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: Window
) -> torch.Tensor:
    inputs, weight = inputs.contiguous(), weight.contiguous()
    inner = tuple(inputs.shape[2:])
    outer = window.out(inner)
    channels = weight.shape[1] if window.transposed else weight.shape[0]
    shape = (inputs.shape[0], channels, *outer)
    # In three dimensions made like the input first.
    first = window.transposed and len(inner) == 3
    out = resized(torch.empty_like(inputs), shape) if first else _like(inputs, shape)
    if not (window.moves or window.transposed or window.dilated):
        _product(weight.flatten(1), inputs[0].flatten(1), out[0].flatten(1))
        return out
    columns = _like(inputs, window.columns(weight, inner, outer))
    if window.transposed:
        ones = _like(inputs, (prod(outer),)) if bias is not None else None
        _product(weight.flatten(1).t(), inputs[0].flatten(1), columns)
        del ones
    else:
        _product(weight.flatten(1), columns, out[0].flatten(1))
    del columns, weight, inputs
    return out


def backward(grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Any:
    """``aten::convolution_backward``."""
    # The simulated device's own operator lacks the sizes of the bias.
    *options, wanted = rest if isinstance(rest[0], list | tuple) and len(rest) == 7 else rest[1:]
    if weight.dim() == 3:
        wide = [
            [fill, *values] if isinstance(values, list | tuple) else values
            for fill, values in zip((1, 0, 1, None, 0, None), options, strict=True)
        ]
        grads = backward(grad.unsqueeze(2), inputs.unsqueeze(2), weight.unsqueeze(2), *wide, wanted)
        return (*(g.squeeze(2) if g is not None else None for g in grads[:2]), grads[2])
    window, groups = Window(weight, options), options[-1]
    if not inputs.numel():
        sizes = inputs.shape, weight.shape, (grad.shape[1],)
        return tuple(
            grad.new_zeros(size) if asked else None
            for size, asked in zip(sizes, wanted, strict=True)
        )
    if depthwise.is_depthwise(inputs, weight, window.transposed, groups):
        return depthwise.backward(grad, inputs, weight, wanted)
    inputs, weight = inputs.contiguous(), weight.contiguous()
    if groups == 1:
        made = _backward(grad, inputs, weight, window, wanted)
        del weight, inputs
        return made
    parts = zip(
        grad.chunk(groups, 1), inputs.chunk(groups, 1), weight.chunk(groups, 0), strict=True
    )
    lists = [
        list(of)
        for of in zip(
            *(_backward(*part, window, wanted, grouped=True) for part in parts), strict=True
        )
    ]
    found = tuple(
        torch.cat(lists[which], dim) if wanted[which] else None
        for which, dim in enumerate((1, 0, 0))
    )
    while lists:
        lists[-1].pop(0)
        lists = lists if lists[-1] else lists[:-1]
    del parts, weight, inputs
    return found


def _backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    window: Window,
    wanted: Any,
    *,
    grouped: bool = False,
) -> Any:
    if grouped:
        grad = grad.contiguous(memory_format=suggest_memory_format(grad))
    inputs, weight = inputs.contiguous(), weight.contiguous()
    rows = grad if window.transposed else grad.contiguous()
    size = window.columns(weight, tuple(inputs.shape[2:]), tuple(grad.shape[2:]))
    by = _transposed_backward if window.transposed else _plain_backward
    if window.dilated and not window.transposed:
        by = _dilated_backward
    found = by(rows, inputs, weight, size, window, wanted)
    del rows, weight, inputs, grad
    return found


def _plain_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    size: Shape,
    window: Window,
    wanted: Any,
) -> Any:
    found: list[torch.Tensor | None] = [None] * 3
    columns = None
    if wanted[0]:
        found[0] = _like(grad, tuple(inputs.shape))
        columns = _like(grad, size)
        _product(weight.flatten(1).t(), grad[0].flatten(1), columns)
    if wanted[2]:
        found[2] = bias_of(grad)
    if wanted[1]:
        found[1] = change = _like(grad, tuple(weight.shape))
        if columns is None:
            # Made where they are not needed, too.
            columns = _like(grad, size)
        right = columns if window.moves else inputs[0].flatten(1)
        _product(grad[0].flatten(1), right.t(), change.flatten(1))
    return tuple(found)


def _dilated_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    size: Shape,
    window: Window,
    wanted: Any,
) -> Any:
    shapes = (inputs.shape, weight.shape, (weight.shape[0],))
    found = [
        _like(grad, tuple(shape)) if want else None
        for shape, want in zip(shapes, wanted, strict=True)
    ]
    columns = _like(grad, size)
    for sample in grad:
        if found[0] is not None:
            _product(weight.flatten(1).t(), sample.flatten(1), columns)
        if found[1] is not None:
            _product(sample.flatten(1), columns.t(), found[1].flatten(1))
        if found[2] is not None:
            sample.flatten(1).sum(1)
    return tuple(found)


def _transposed_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    size: Shape,
    window: Window,
    wanted: Any,
) -> Any:
    found: list[torch.Tensor | None] = [None] * 3
    if wanted[0]:
        rows = grad.contiguous()
        found[0] = change = _like(grad, tuple(inputs.shape))
        columns = _like(grad, size) if window.moves else rows[0].flatten(1)
        _product(weight.flatten(1), columns, change[0].flatten(1))
        del columns, rows
    if wanted[1]:
        found[1] = _like(grad, tuple(weight.shape))
    if wanted[2]:
        found[2] = bias_of(grad)
    if found[1] is not None:
        rows = grad.contiguous()
        columns = _like(grad, size) if window.moves else rows[0].flatten(1)
        _product(inputs[0].flatten(1), columns.t(), found[1].flatten(1))
        del columns, rows
    return tuple(found)


def _like(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """One product stands for all samples': the first one takes cuBLAS' workspace."""
    torch.mm(left, right, out=out)
