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

from memcalc.trace.operators.depthwise import is_depthwise

Shape = tuple[int, ...]


class _Window:
    """How a kernel moves over an image. Shapes: one number for each dimension of the image."""

    def __init__(self, weight: torch.Tensor, options: Any) -> None:
        stride, padding, dilation, transposed, more, _ = options
        self.kernel: Shape = tuple(weight.shape[2:])
        self.stride, self.padding, self.dilation, self.more = (
            self._wide(values) for values in (stride, padding, dilation, more)
        )
        self.transposed = bool(transposed)
        self.dilated = any(step > 1 for step in self.dilation) or len(self.kernel) == 3
        still = (self.stride, self.padding) == ((1,) * len(self.kernel), (0,) * len(self.kernel))
        self.moves = set(self.kernel) != {1} or not still
        """Columns are needed: a pixel is more than itself."""

    def _wide(self, values: Any) -> Shape:
        return tuple(values) * (len(self.kernel) if len(values) == 1 else 1)

    def out(self, image: Shape) -> Shape:
        """Size of the image that comes out."""
        sizes = zip(
            image, self.kernel, self.stride, self.padding, self.dilation, self.more, strict=True
        )
        if self.transposed:
            return tuple((n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, k, s, p, d, m in sizes)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes)

    def columns(self, weight: torch.Tensor, inner: Shape, outer: Shape) -> Shape:
        """Of one sample: weights of a pixel, and pixels."""
        if self.transposed:
            return weight.shape[1] * prod(self.kernel), prod(inner)
        return weight.shape[1] * prod(self.kernel), prod(outer)


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
    window, groups = _Window(weight, options), options[-1]
    if not inputs.numel():
        # Source: Convolution.cpp, ``ConvBackend::Empty``, which makes no columns (2.13).
        outer = window.out(tuple(inputs.shape[2:]))
        channels = weight.shape[1] * groups if window.transposed else weight.shape[0]
        return _like(inputs, (inputs.shape[0], channels, *outer))
    inputs = inputs.contiguous()
    if groups == 1:
        return _forward(inputs, weight, bias, window)
    if is_depthwise(inputs, weight, window.transposed, groups):
        size = (inputs.shape[0], weight.shape[0], *window.out(tuple(inputs.shape[2:])))
        return _like(inputs, size)
    parts = zip(
        inputs.chunk(groups, 1),
        weight.chunk(groups, 0),
        bias.chunk(groups, 0) if bias is not None else [None] * groups,
        strict=True,
    )
    return torch.cat([_forward(*part, window) for part in parts], 1)


def _forward(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: _Window
) -> torch.Tensor:
    inputs, weight = inputs.contiguous(), weight.contiguous()
    inner = tuple(inputs.shape[2:])
    outer = window.out(inner)
    channels = weight.shape[1] if window.transposed else weight.shape[0]
    # In three dimensions made like the input first, then in its own size.
    room = torch.empty_like(inputs) if window.transposed and len(inner) == 3 else None
    out = _like(inputs, (inputs.shape[0], channels, *outer))
    del room
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
    window, groups = _Window(weight, options), options[-1]
    if not inputs.numel():
        sizes = inputs.shape, weight.shape, (grad.shape[1],)
        return tuple(
            grad.new_zeros(size) if asked else None
            for size, asked in zip(sizes, wanted, strict=True)
        )
    if groups > 1 and is_depthwise(inputs, weight, window.transposed, groups):
        return _depthwise_backward(grad, inputs, weight, wanted)
    inputs = inputs.contiguous()
    if groups == 1:
        return _backward(grad, inputs, weight, window, wanted)
    parts = [
        _backward(*part, window, wanted)
        for part in zip(
            grad.chunk(groups, 1), inputs.chunk(groups, 1), weight.chunk(groups, 0), strict=True
        )
    ]
    return tuple(
        torch.cat([part[which] for part in parts], dim) if wanted[which] else None
        for which, dim in enumerate((1, 0, 0))
    )


def _backward(
    grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, window: _Window, wanted: Any
) -> Any:
    grad, inputs, weight = grad.contiguous(), inputs.contiguous(), weight.contiguous()
    size = window.columns(weight, tuple(inputs.shape[2:]), tuple(grad.shape[2:]))
    by = _transposed_backward if window.transposed else _plain_backward
    if window.dilated and not window.transposed:
        by = _dilated_backward
    return by(grad, inputs, weight, size, window, wanted)


def _plain_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    size: Shape,
    window: _Window,
    wanted: Any,
) -> Any:
    found: list[torch.Tensor | None] = [None] * 3
    columns = None
    if wanted[0]:
        found[0] = _like(grad, tuple(inputs.shape))
        columns = _like(grad, size)
        _product(weight.flatten(1).t(), grad[0].flatten(1), columns)
    if wanted[2]:
        found[2] = _bias(grad)
    if wanted[1]:
        found[1] = change = _like(grad, tuple(weight.shape))
        if columns is None and window.moves:
            columns = _like(grad, size)
        right = columns if columns is not None else inputs[0].flatten(1)
        _product(grad[0].flatten(1), right.t(), change.flatten(1))
    return tuple(found)


def _dilated_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    size: Shape,
    window: _Window,
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
    window: _Window,
    wanted: Any,
) -> Any:
    found: list[torch.Tensor | None] = [None] * 3
    if wanted[0]:
        found[0] = change = _like(grad, tuple(inputs.shape))
        columns = _like(grad, size) if window.moves else grad[0].flatten(1)
        _product(weight.flatten(1), columns, change[0].flatten(1))
        del columns
    if wanted[1]:
        found[1] = _like(grad, tuple(weight.shape))
    if wanted[2]:
        found[2] = _bias(grad)
    if found[1] is not None:
        columns = _like(grad, size) if window.moves else grad[0].flatten(1)
        _product(inputs[0].flatten(1), columns.t(), found[1].flatten(1))
    return tuple(found)


def _depthwise_backward(
    grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, wanted: Any
) -> Any:
    grad, inputs = grad.contiguous(), inputs.contiguous()
    found: list[torch.Tensor | None] = [None] * 3
    # In two dimensions the weight comes first.
    for which in (1, 0) if weight.dim() == 4 else (0, 1):
        if wanted[which]:
            found[which] = _like(grad, tuple((inputs, weight)[which].shape))
    if wanted[2]:
        found[2] = _bias(grad)
    return tuple(found)


def _bias(grad: torch.Tensor) -> torch.Tensor:
    return grad.sum((0, *range(2, grad.dim())))


def _like(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """One product stands for all samples': the first one takes cuBLAS' workspace."""
    torch.mm(left, right, out=out)
