"""Batch norm: cuDNN's, or PyTorch's own, which goes another way where channels come last.

Source: aten/src/ATen/native/Normalization.cpp (``_select_batch_norm_backend``),
aten/src/ATen/native/cuda/Normalization.cu (``batch_norm_choose_impl``,
``batch_norm_elementwise``, ``batch_norm_backward_cuda``) and Normalization.cuh
(``flexible_launch_configs``, ``batch_norm_backward_reduce_cuda_template``); seen with PyTorch 2.11
and 2.13, PyTorch's own compared with its CUDA build event by event.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import ceil_div
from memcalc.trace.torch_private.tensors import storage_key, suggest_memory_format

_TILE, _BLOCK, _PER_THREAD, _MOST_ROWS, _FEWEST_ROWS = 32, 512, 16, 128, 8
_INT = 4
_ROWS, _LAST, _GENERAL = "rows", "channels last", "general"


def forward_call(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What the forward takes beside its outputs."""
    inputs, training = args[0], args[5]
    own = _own_call(inputs, args[1:3], training)
    if _fits_cudnn(inputs, args[1], training):
        last = (*_rows(inputs), inputs.dtype is torch.float16) if _lies_last(inputs) else ()
        return KernelCall("batch_norm", (own, last)) if any(own) or last else None
    return KernelCall("own_batch_norm", own) if any(own) else None


def _own_call(inputs: torch.Tensor, scales: tuple[Any, ...], training: bool) -> tuple[Any, ...]:
    """What ``own_batch_norm`` is told: staging, a copy, what is reduced, numbers that scale.

    What lies otherwise is reduced by ``var_mean_out``, of a copy as wide as the moments, and a
    number stands for each of weight and bias that there is not.
    """
    way, wide = _way(inputs), _wide(inputs)
    if way is not _GENERAL:
        return (_staging(inputs, 4) or ()) if training and way is _LAST else (), 0, (), ()
    ones = tuple(wide.itemsize for scale in scales if scale is None)
    if not training:
        return (), 0, (), ones
    copied = 0 if inputs.dtype in (wide, torch.float16) else inputs.numel() * wide.itemsize
    element = wide.itemsize if copied else inputs.element_size()
    dims = (0, *range(2, inputs.dim()))
    place = tuple(inputs.shape), tuple(inputs.stride()), dims
    return (), copied, (*place, 4 * wide.itemsize, element, wide.itemsize), ones


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
    if not (training or wanted[1] or wanted[2]) or not inputs.numel():
        return NotImplemented
    fused = wanted[0] and not _by_channel(inputs)
    return _of_rows(*args) if fused else _in_steps(*args)


def _in_steps(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """Sums first, with the gradients of weight and bias, and then the input's."""
    grad, inputs, weight, training, wanted = *args[:3], args[7], args[9]
    if _by_channel(inputs) and _by_channel(grad):
        sums, made = moments(inputs, 2), [None if weight is None else _like(weight) for _ in "wb"]
        staged(inputs, 2)
    else:
        seen = [_seen(tensor) for tensor in (inputs, grad)]
        sums = moments(inputs, 2) if wanted[0] else []
        made = [_like(weight) if want and weight is not None else None for want in wanted[1:]]
        del seen
    result = None
    if wanted[0]:
        result = _of_input(grad, inputs, weight) if training else _like(inputs)
    del sums
    of_weight, of_bias = (one if want else None for one, want in zip(made, wanted[1:], strict=True))
    return result, of_weight, of_bias


def _of_input(
    grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    """``batch_norm_elementwise_backward_train``, where a number stands for a weight."""
    way = _way(inputs)
    if way is _ROWS and _way(grad) is _ROWS:
        return _like(inputs)
    one = None
    if weight is None and (way is _GENERAL or _way(grad) is not way):
        one = torch.empty((), dtype=_wide(inputs), device=inputs.device)
    result = torch.empty_like(inputs, memory_format=suggest_memory_format(inputs))
    del one
    return result


def _of_rows(*args: Any) -> Any:
    """What cannot be seen as (N, C, *) is copied, held to the end."""
    grad, inputs, weight, wanted = *args[:3], args[9]
    seen = [_seen(tensor) for tensor in (inputs, grad)]
    if all(map(_shares, seen, (inputs, grad))):
        return NotImplemented
    made = (inputs, weight, weight)
    out = [_like(one) if want else None for one, want in zip(made, wanted, strict=True)]
    del seen
    return tuple(out)


def _seen(tensor: torch.Tensor) -> torch.Tensor:
    """As (N, C, *): what cannot be seen so is copied."""
    return tensor.reshape((*tensor.shape[:2], tensor[0, 0].numel()))


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
    staging = _staging(inputs, sums) if _by_channel(inputs) else None
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


def _way(inputs: torch.Tensor) -> str:
    """Which kernels run it (``batch_norm_choose_impl``)."""
    if inputs.is_contiguous():
        return _LAST if inputs.stride(1) == 1 else _ROWS
    if inputs.dim() == 4 and inputs.is_contiguous(memory_format=torch.channels_last):
        return _LAST
    return _GENERAL


def _by_channel(inputs: torch.Tensor) -> bool:
    """Channels come last or are one (``batch_norm_use_channels_last_kernels``).

    A single channel lies in rows as well, and so do kernels that are chosen otherwise.
    """
    if inputs.is_contiguous() and inputs.stride(1) == 1:
        return True
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(inputs.dim())
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
