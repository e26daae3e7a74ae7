"""Batch norm: cuDNN's, or PyTorch's own, which goes another way where channels come last.

Source: aten/src/ATen/native/Normalization.cpp (``_select_batch_norm_backend``),
aten/src/ATen/native/cuda/Normalization.cu (``batch_norm_choose_impl``,
``batch_norm_backward_cuda``) and Normalization.cuh (``flexible_launch_configs``); seen with PyTorch
2.11 and 2.13, PyTorch's own compared with its CUDA build event by event.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import Allocations, ceil_div
from memcalc.trace.torch_private.tensors import storage_key, suggest_memory_format

_TILE, _BLOCK, _PER_THREAD, _MOST_ROWS, _FEWEST_ROWS = 32, 512, 16, 128, 8
_INT = _FLOAT = 4


def forward_call(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What the forward takes beside its outputs."""
    inputs, training = args[0], args[5]
    staging = _staging(inputs, 4) if training and _channels_last(inputs) else None
    own: Allocations = () if staging is None else (*staging, ~1, ~0)
    if training and _lies_across(inputs) and inputs.element_size() < _FLOAT:
        # Moments of 16-bit numbers are those of a copy in fp32 (``batch_norm_mean_var``).
        own = (inputs.numel() * _FLOAT, ~0)
    if _fits_cudnn(inputs, args[1], training):
        last = _rows(inputs) if _lies_last(inputs) else None
        if last is None:
            return KernelCall("batch_norm", (own,)) if own else None
        return KernelCall("batch_norm", (own, (*last, inputs.dtype is torch.float16)))
    return KernelCall("fixed", ((), own)) if own else None


def backward_call(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What cuDNN's backward takes beside its outputs."""
    grad, inputs, weight, training = *args[:3], args[7]
    if not _fits_cudnn(inputs, weight, training):
        return None
    layout = suggest_memory_format(inputs)
    copied = 0 if grad.is_contiguous(memory_format=layout) else grad.numel() * grad.element_size()
    last = _rows(inputs) if _lies_last(inputs) else ()
    return KernelCall("batch_norm_backward", (copied, last)) if copied or last else None


def backward(*args: Any) -> Any:
    """Where cuDNN does not run it: two sums first, then the gradients."""
    inputs, weight, training = args[1], args[2], args[7]
    if _fits_cudnn(inputs, weight, training):
        return NotImplemented
    return own_backward(*args)


def own_backward(*args: Any) -> Any:
    """PyTorch's own, whatever cuDNN could do."""
    inputs, training, wanted = args[1], args[7], args[9]
    if not (training or wanted[1] or wanted[2]):
        return NotImplemented
    return _of_last(*args) if _channels_last(inputs) else _of_rows(*args)


def _of_last(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """Where channels come last there are sums first.

    Where they do so in the gradient too, those of weight and bias are made together.
    """
    grad, inputs, weight, training, wanted = *args[:3], args[7], args[9]
    sums, together = moments(inputs, 2), _channels_last(grad)
    made = [
        _like(weight) if weight is not None and (together or want) else None for want in wanted[1:]
    ]
    if together:
        staged(inputs, 2)
    result = None
    if wanted[0]:
        result = torch.empty_like(inputs) if training else _like(inputs)
    del sums
    of_weight, of_bias = (one if want else None for one, want in zip(made, wanted[1:], strict=True))
    return result, of_weight, of_bias


def _of_rows(*args: Any) -> Any:
    """What cannot be seen as (N, C, *) is copied, held to the end."""
    grad, inputs, weight, wanted = *args[:3], args[9]
    if not wanted[0] or not inputs.numel():
        return NotImplemented
    shape = (*inputs.shape[:2], inputs[0, 0].numel())
    seen = [tensor.reshape(shape) for tensor in (inputs, grad)]
    if all(map(_shares, seen, (inputs, grad))):
        return NotImplemented
    made = (inputs, weight, weight)
    out = [_like(one) if want else None for one, want in zip(made, wanted, strict=True)]
    del seen
    return tuple(out)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return storage_key(one) == storage_key(other)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Of its size, in rows."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def moments(inputs: torch.Tensor, count: int) -> list[torch.Tensor]:
    """So many numbers of each channel, as wide as they are summed."""
    wide, channels = _wide(inputs), inputs.shape[1]
    return [torch.empty(channels, dtype=wide, device=inputs.device) for _ in range(count)]


def staged(inputs: torch.Tensor, sums: int) -> None:
    """What blocks hand on where several sum up channels that come last."""
    staging = _staging(inputs, sums) if _channels_last(inputs) else None
    if staging is not None:
        kept = [torch.empty(size, dtype=torch.uint8, device=inputs.device) for size in staging]
        del kept


def _fits_cudnn(inputs: torch.Tensor, weight: torch.Tensor | None, training: bool) -> bool:
    """In training it is cuDNN's, unless the type is bfloat16."""
    if weight is None or not training or inputs.dim() < 3:
        return False
    if torch.bfloat16 in (inputs.dtype, weight.dtype):
        return False
    return inputs.dtype is not torch.float16 or weight.dtype is torch.float32


def _lies_last(inputs: torch.Tensor) -> bool:
    """PyTorch asks cuDNN for its kernel of channels that lie last (``getCudnnBatchNormMode``)."""
    return suggest_memory_format(inputs) is not torch.contiguous_format


def _rows(inputs: torch.Tensor) -> tuple[int, int]:
    channels = inputs.shape[1]
    return inputs.numel() // channels, channels


def _lies_across(inputs: torch.Tensor) -> bool:
    return not inputs.is_contiguous() and not _channels_last(inputs)


def _channels_last(inputs: torch.Tensor) -> bool:
    if inputs.is_contiguous():
        return inputs.stride(1) == 1
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(inputs.dim())
    return layout is not None and inputs.is_contiguous(memory_format=layout)


def _staging(inputs: torch.Tensor, sums: int) -> tuple[int, int] | None:
    """Bytes of partial sums and of semaphores, where several blocks share a channel.

    Args:
        inputs: (N, C, *).
        sums: kept for each channel.
    """
    channels = inputs.shape[1]
    rows = inputs.numel() // channels
    width = min(_power_of_two(channels), _TILE)
    height = min(_power_of_two(ceil_div(rows, _PER_THREAD)), _BLOCK // width)
    if width * height != _BLOCK:
        width = min(_power_of_two(channels), _BLOCK // height)
    blocks = min(ceil_div(rows, height * _PER_THREAD), _MOST_ROWS)
    if blocks < _FEWEST_ROWS:
        return None
    return sums * channels * blocks * _wide(inputs).itemsize, ceil_div(channels, width) * _INT


def _wide(inputs: torch.Tensor) -> torch.dtype:
    """The type that sums are kept in."""
    return torch.float64 if inputs.dtype is torch.float64 else torch.float32


def _power_of_two(number: int) -> int:
    """The largest that is not above."""
    return 1 << (max(number, 1).bit_length() - 1)
