"""Convolutions as cuDNN runs them: copies into rows, then each gradient by itself.

Source: aten/src/ATen/native/Convolution.cpp, ``_convolution`` and ``convolution_backward``, and
aten/src/ATen/native/cudnn/ConvShared.cpp (2.11 and 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memcalc.kernels.convolution import DTYPES, Direction
from memcalc.kernels.formulas import KernelCall
from memcalc.trace.torch_private.tensors import suggest_memory_format

PLANNED = "cuDNN is the version that PyTorch brings along, with torch.backends.cudnn.benchmark off"
TRIED = (
    "torch.backends.cudnn.benchmark is on: in the first step the largest workspace of cuDNN's "
    "engines is taken once for each size, as far as there is room, and given back with the "
    "allocator's cache, which peaks leave out"
)
"""What is assumed of a run with convolutions. Source: ``run_single_conv`` and
``get_plans_from_find`` in aten/src/ATen/native/cudnn/Conv_v8.cpp."""
_aten = torch.ops.aten
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_BATCH_AND_IMAGE = {3: (0, 2), 4: (0, 2, 3), 5: (0, 2, 3, 4)}


def forward(*args: Any) -> torch.Tensor:
    """Copy what does not lie as cuDNN will have it; the copy lives as long as the kernel."""
    inputs, weight, *rest = args
    layout = _layout(inputs, weight)
    inputs = inputs.contiguous(memory_format=layout)
    return _aten.convolution.default(inputs, weight, *rest)  # type: ignore[no-any-return]


def copies(args: tuple[Any, ...]) -> bool:
    """The input of this convolution is copied."""
    return not args[0].is_contiguous(memory_format=_layout(*args[:2]))


def backward(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """Gradients of input, weight and bias, one kernel each."""
    grad, inputs, weight, *options, wanted = args
    layout = _layout(inputs, weight)
    bias = grad
    if _reads_inputs(inputs, wanted):
        inputs = inputs.contiguous(memory_format=layout)
    grad = grad.contiguous(memory_format=layout)
    alone = [
        _aten.convolution_backward.default(
            grad, inputs, weight, *options, [index == which for index in range(3)]
        )[which]
        if wanted[which]
        else None
        for which in (0, 1)
    ]
    del grad
    if bias.dim() > 3:
        # In one dimension the copy of the input lives until all is done.
        del inputs
    return (*alone, bias.sum(_BATCH_AND_IMAGE[bias.dim()]) if wanted[2] else None)


def _reads_inputs(inputs: torch.Tensor, wanted: Sequence[bool]) -> bool:
    """The gradient of the input alone is made without it, but in one dimension it is copied."""
    return bool(wanted[1]) or inputs.dim() == 3


def several(args: tuple[Any, ...]) -> bool:
    """More is wanted of this backward than one gradient of tensors that lie as they should."""
    grad, inputs, weight, *_, wanted = args
    layout = _layout(inputs, weight)
    read = (grad, inputs) if _reads_inputs(inputs, wanted) else (grad,)
    lie = all(tensor.is_contiguous(memory_format=layout) for tensor in read)
    return sum(wanted) > 1 or bool(wanted[2]) or not lie


def forward_call(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The workspace of a forward."""
    inputs, weight, _, *options = args
    return _call(Direction.OUTPUT, (inputs, weight, out), inputs.shape, options)


def backward_call(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The workspace of one gradient."""
    grad, inputs, weight, _, *options, wanted = args
    direction = Direction.INPUT_GRAD if wanted[0] else Direction.WEIGHT_GRAD
    return _call(direction, (grad, inputs, weight), inputs.shape, options)


def _call(direction: int, tensors: Any, image: Any, options: list[Any]) -> KernelCall:
    stride, padding, dilation, transposed, _, groups = options
    weight = tensors[1] if direction == Direction.OUTPUT else tensors[2]
    dtype = str(weight.dtype).removeprefix("torch.")
    plain = all(tensor.is_contiguous() for tensor in tensors)
    if not (plain or _last(tensors)) or dtype not in DTYPES:
        return KernelCall("convolution", (int(direction),))
    if transposed:
        # It is the gradient of a convolution's input, and the other way round.
        direction = (Direction.INPUT_GRAD, Direction.OUTPUT, Direction.WEIGHT_GRAD)[direction]
        image = tensors[2].shape if direction == Direction.INPUT_GRAD else tensors[0].shape
    image, kernel = tuple(image), tuple(weight.shape)
    moves = [spread(values, weight.dim() - 2) for values in (stride, padding, dilation)]
    if weight.dim() == 3:
        image, kernel = (*image[:2], 1, image[2]), (*kernel[:2], 1, kernel[2])
        moves = [[first, *values] for first, values in zip((1, 0, 1), moves, strict=True)]
    flat = tuple(number for values in moves for number in values)
    sizes = (image, kernel, flat, groups, DTYPES.index(dtype), *(() if plain else (True,)))
    return KernelCall("convolution", (int(direction), *sizes))


def _last(tensors: Any) -> bool:
    layout = _LAST.get(tensors[0].dim())
    return layout is not None and all(
        tensor.is_contiguous(memory_format=layout) for tensor in tensors
    )


def spread(values: Sequence[int], axes: int) -> list[int]:
    """A number for each axis, where one may stand for all."""
    return list(values) * axes if len(values) == 1 else list(values)


def _layout(inputs: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Channels last where image or weight lies so; in one dimension never.

    Source: aten/src/ATen/native/ConvUtils.h, ``cudnn_conv_suggest_memory_format``.
    """
    for tensor in (inputs, weight) if inputs.dim() > 3 else ():
        layout = suggest_memory_format(tensor)
        if layout is not torch.contiguous_format:
            return layout
    return torch.contiguous_format
