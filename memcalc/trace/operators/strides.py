"""How results of kernels lie in memory where fake kernels lay them otherwise.

A gradient that lies across costs whoever takes it next a copy, or saves it one. Each rule was seen
with PyTorch 2.13's CUDA build, for inputs and gradients in rows, across, expanded and with channels
last; sources are the kernels' files in aten/src/ATen/native.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memcalc.trace.torch_private.tensors import suggest_memory_format

_aten = torch.ops.aten
Kernel = Callable[..., Any]


def _first(out: Any, laid: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The result with its tensor, or the first of several, laid so."""
    if isinstance(out, torch.Tensor):
        return laid(out)
    if out[0] is None:
        return out
    return (laid(out[0]), *out[1:])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def resized(room: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A result that a kernel makes first, and then in its own size, in rows.

    Memory is kept where it is large enough, and taken before that of old is let go of.
    """
    if room.numel() < math.prod(shape):
        return torch.empty(shape, dtype=room.dtype, device=room.device)
    strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    return torch.as_strided(room, shape, strides)


def _in_rows(func: Any) -> Kernel:
    """Whatever the arguments lie like: ``LEGACY_CONTIGUOUS_MEMORY_FORMAT``, or none named."""
    return lambda *args, **kwargs: _first(func(*args, **kwargs), _rows)


def _as_given(func: Any) -> Kernel:
    """Channels come last where they do in the input, however few there are.

    Source: aten/src/ATen/native/UpSampleBilinear2d.cpp and UpSampleTrilinear3d.cpp (2.13).
    """

    def kernel(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out = func(inputs, *args, **kwargs)
        return torch.empty_like(out, memory_format=suggest_memory_format(inputs))

    return kernel


def _batch_norm_backward(*args: Any) -> Any:
    """With channels last where the input has them so, if moments are the batch's; else in rows."""
    inputs, training = args[1], args[7]
    layout = suggest_memory_format(inputs) if training else torch.contiguous_format
    out = _aten.native_batch_norm_backward.default(*args)
    return _first(out, lambda tensor: torch.empty_like(tensor, memory_format=layout))


def _group_norm_backward(*args: Any) -> Any:
    """With channels last where the input has them so, which before 2.15 none has."""
    layout = suggest_memory_format(args[1])
    out = _aten.native_group_norm_backward.default(*args)
    return _first(out, lambda tensor: torch.empty_like(tensor, memory_format=layout))


def _added_to_products(added: Any, left: Any, right: Any, dtype: torch.dtype, **_: Any) -> Any:
    """PyTorch has another overload's decomposition for this one (2.13)."""
    shape = left.shape[0], left.shape[1], right.shape[2]
    return torch.empty(shape, dtype=dtype, device=left.device)


def _like_gradient(grad: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(grad)


def _classes_in_bytes(func: Any) -> Kernel:
    """CUDA takes classes of 8 bits, fake tensors none (cuda/Loss.cu, 2.13)."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        wide = (one.long() if _is_bytes(one) else one for one in args)
        return func(*wide, **kwargs)

    return kernel


def _is_bytes(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype is torch.uint8


def _mask_in_bytes(mask: torch.Tensor, *both: Any) -> Any:
    """CUDA takes masks of 8 bits, fake tensors none (TensorCompare.cpp, 2.13)."""
    return _aten.where.self(mask.bool() if _is_bytes(mask) else mask, *both)


def _like_input(grad: torch.Tensor, inputs: torch.Tensor, *_: Any) -> torch.Tensor:
    return _rows(inputs)


def _by_operands(func: Any, first: int, second: int) -> Kernel:
    """As elementwise kernels lay it, which look at their operands in this order."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        strides = _aten.add.Tensor(args[first], args[second]).stride()
        return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device)

    return kernel


_ROWS = (
    # cuda/layer_norm_kernel.cu, cuda/SoftMax.cu, cuda/ActivationGluKernel.cu
    *(_aten.native_layer_norm_backward.default, _aten._fused_rms_norm_backward.default),
    _aten._log_softmax_backward_data.default,
    _aten.glu_backward.default,
    _aten.reflection_pad2d.default,
    # PixelShuffle.cpp: a reshape of what was permuted
    *(_aten.pixel_shuffle.default, _aten.pixel_unshuffle.default),
)
_AS_INPUT = (
    # Loss.cpp: the gradient is made like the input, of whichever type the target is
    *(_aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default),
    _aten.huber_loss_backward.default,
)
_OF_GRAD_FIRST = (
    # Activation.cpp and cuda/Activation*Kernel.cu: the gradient is the first operand
    *(_aten.hardswish_backward.default, _aten.hardsigmoid_backward.default),
    *(_aten.hardtanh_backward.default, _aten.softplus_backward.default),
)
FAKE_KERNELS: dict[Any, Kernel] = {
    **{func: _in_rows(func) for func in _ROWS},
    **dict.fromkeys(_AS_INPUT, _like_input),
    **{
        func: _as_given(func)
        for func in (_aten.upsample_bilinear2d.default, _aten.upsample_trilinear3d.default)
    },
    **{func: _by_operands(func, 0, 1) for func in _OF_GRAD_FIRST},
    _aten.elu_backward.default: _by_operands(_aten.elu_backward.default, 0, 5),
    _aten.leaky_relu_backward.default: _by_operands(_aten.leaky_relu_backward.default, 1, 0),
    _aten.rrelu_with_noise_backward.default: _by_operands(
        _aten.rrelu_with_noise_backward.default, 2, 0
    ),
    _aten.log_sigmoid_backward.default: _like_gradient,
    **{
        func: _classes_in_bytes(func)
        for func in (_aten.nll_loss_forward.default, _aten.nll_loss_backward.default)
    },
    _aten.where.self: _mask_in_bytes,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_group_norm_backward.default: _group_norm_backward,
    **({_aten.baddbmm.dtype: _added_to_products} if hasattr(_aten.baddbmm, "dtype") else {}),
}
"""What runs in place of an operator's fake kernel."""
