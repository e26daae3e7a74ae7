"""Which depthwise convolutions PyTorch runs by itself though cuDNN is on, and how.

Source: aten/src/ATen/native/Convolution.cpp, ``use_cudnn_depthwise`` and
``check_cudnn_depthwise_workload_with_filter``, and aten/src/ATen/native/ConvUtils.h,
``cudnn_conv_suggest_memory_format`` (2.11 and 2.13). Held against ``torch._C._select_conv_backend``
of the CUDA build over 223 thousand kinds of sizes, steps, layouts and types.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.trace.operators.windows import Window, bias_of
from memcalc.trace.torch_private.tensors import suggest_memory_format

_ROWS = torch.contiguous_format
_INDEXED = (1 << 31) - 1
"""The native kernels reach fewer elements than this."""
_FEWEST = 32
"""Channels that cuDNN is asked for."""
_FILTERS = (1, 3, 5)


def is_depthwise(inputs: torch.Tensor, weight: torch.Tensor, transposed: bool, groups: int) -> bool:
    """Each channel has weights of its own; shapes: (N, groups, ...) and (M * groups, 1, ...)."""
    channels = inputs.shape[1]
    return not transposed and channels == groups > 1 and weight.shape[0] % channels == 0


def without_cudnn(inputs: torch.Tensor, weight: torch.Tensor, options: Any) -> bool:
    """Neither channels last nor one of the fp16 convolutions that cuDNN is faster at.

    Args:
        inputs: images or rows, with their batch.
        weight: of the convolution.
        options: stride, padding, dilation, transposed, output padding and groups.
    """
    stride, _, dilation, transposed, _, groups = options
    if not is_depthwise(inputs, weight, bool(transposed), groups):
        return False
    if not _in_rows(inputs, weight) or max(inputs.numel(), weight.numel()) >= _INDEXED:
        return False
    half = inputs.dtype == weight.dtype == torch.float16
    if not half or weight.dim() == 5 or groups < _FEWEST or any(step > 1 for step in dilation):
        return True
    return not _faster_by_cudnn(inputs, weight, stride)


def _in_rows(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    # In one dimension the input is copied into rows first; in fp64 the layout is not looked at.
    if weight.dim() == 3 or inputs.dtype == torch.float64:
        return True
    return suggest_memory_format(inputs) is suggest_memory_format(weight) is _ROWS


def _faster_by_cudnn(inputs: torch.Tensor, weight: torch.Tensor, stride: Any) -> bool:
    """In fp16, by sizes."""
    step = stride[-1]
    height = 1 if weight.dim() == 3 else inputs.shape[2]
    if height == 1 and step == 1:
        return True
    filters = tuple(weight.shape[2:])
    if height > 1 and stride[0] != step:
        return False
    if len(filters) == 1:
        filters = (1, *filters)
    batch, channels, width = inputs.shape[0], inputs.shape[1], inputs.shape[-1]
    if filters[0] != filters[1] or filters[0] not in _FILTERS or width < 7:
        return False
    if step != 2:
        return bool(step == 1)
    if filters[0] == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def forward(inputs: torch.Tensor, weight: torch.Tensor, window: Window) -> torch.Tensor:
    """Shape (N, M * groups, ...), made of the input and the weights in rows.

    Source: aten/src/ATen/native/cuda/ DepthwiseConv2d.cu and DepthwiseConv3d.cu (2.13), here and in
    ``backward``: in three dimensions a result comes before the copies, in two behind them.
    """
    size = (inputs.shape[0], weight.shape[0], *window.out(tuple(inputs.shape[2:])))
    rows = inputs.contiguous()
    if weight.dim() == 5:
        out = rows.new_empty(size)
        filters = weight.contiguous()
    else:
        filters = weight.contiguous()
        out = rows.new_empty(size)
    del filters, rows
    return out


def backward(grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, wanted: Any) -> Any:
    """Gradients of input, weight and bias, ``None`` where not wanted."""
    if weight.dim() == 5:
        return _deep_backward(grad, inputs, weight, wanted)
    found: list[torch.Tensor | None] = [None] * 3
    rows = grad.contiguous()
    for which in (1, 0):
        if wanted[which]:
            other = (weight, inputs)[which].contiguous()
            found[which] = grad.new_empty((inputs, weight)[which].shape)
            del other
    del rows
    if wanted[2]:
        found[2] = bias_of(grad)
    return tuple(found)


def _deep_backward(
    grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, wanted: Any
) -> Any:
    """The same of volumes."""
    both = zip(wanted, (inputs, weight), strict=False)
    found = [grad.new_empty(of.shape) if asked else None for asked, of in both]
    rows = grad.contiguous()
    for which in (0, 1):
        if wanted[which]:
            (weight, inputs)[which].contiguous()
    bias = bias_of(grad) if wanted[2] else None
    del rows
    return (*found, bias)
