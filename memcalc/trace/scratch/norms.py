"""Reads what softmax and normalisation take beside their outputs."""

from __future__ import annotations

import math
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed, is_dense
from memcalc.trace.torch_private.tensors import suggest_memory_format


def _softmax(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """What does not lie in rows is copied once the output is there.

    Source: aten/src/ATen/native/cuda/SoftMax.cu, ``host_softmax`` (2.11 and 2.13).
    """
    given = args[0]
    if given.is_contiguous():
        return None
    return fixed(after=(bytes_of(given), ~0))


def _safe_softmax(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Rows that are masked whole become zero: which elements are, which rows, and the zero.

    Source: aten/src/ATen/native/SoftMax.cpp, ``_safe_softmax`` (2.11 and 2.13).
    """
    given, rows = args[0], math.prod(out.shape[:-1])
    if given.is_contiguous():
        return fixed(after=(out.numel(), rows, 4, ~2, ~1, ~0))
    copied = bytes_of(given)
    return fixed(after=(copied, ~0, out.numel(), rows, 4, ~3, ~2, ~1))


def _softmax_backward(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The product of gradient and output, and a copy of it where it does not lie in rows.

    Source: aten/src/ATen/native/cuda/SoftMax.cu, ``softmax_backward_cuda_out`` (2.11 and 2.13).
    """
    grad, output = args[:2]
    size = grad.numel() * max(grad.element_size(), output.element_size())
    # The product lies as the gradient does, unless that has gaps.
    in_rows = grad.is_contiguous() or not is_dense(grad)
    return fixed(after=(size, ~0) if in_rows else (size, size, ~1, ~0))


def _group_norm(args: tuple[Any, ...], out: Any) -> KernelCall:
    """Moments in float32 of 16-bit inputs; scale and shift of each channel where there are any."""
    inputs, weight, bias, samples, channels, area, groups = args[:7]
    moments = samples * groups * 4 if inputs.element_size() < 4 else 0
    scale = 0 if weight is None and bias is None else samples * channels * 4
    return KernelCall("group_norm", (moments, scale, area == 1, _across(inputs)))


def _group_norm_backward(args: tuple[Any, ...], out: Any) -> KernelCall:
    inputs, weight, samples, channels, area, groups = args[1], *args[4:9]
    layout = suggest_memory_format(inputs)
    scaled = weight is not None and area > 1 and layout is torch.contiguous_format
    sizes = samples * channels * 4, samples * groups * 4
    copies = tuple(bytes_of(t) for t in args[:2] if not t.is_contiguous(memory_format=layout))
    return KernelCall("group_norm_backward", (*sizes, scaled, area == 1, copies))


def _across(tensor: torch.Tensor) -> int:
    """Bytes of what lies neither in rows nor with channels last."""
    layout = suggest_memory_format(tensor)
    return 0 if tensor.is_contiguous(memory_format=layout) else bytes_of(tensor)


def _layer_norm(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """An input that does not lie in rows is copied first.

    Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, ``layer_norm_cuda`` and
    ``layer_norm_backward_cuda``; recorded with PyTorch 2.13, as the next one.
    """
    return None if args[0].is_contiguous() else fixed(before=(bytes_of(args[0]),), after=(~0,))


def _layer_norm_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """An input is copied before the results are made, a gradient after them."""
    grad, inputs = (0 if t.is_contiguous() else bytes_of(t) for t in args[:2])
    # Mean and its inverse deviation, or that alone: one for each row.
    rows = args[3].numel()
    weights = [one for one in out[1:] if one is not None] if out[1] is not None else []
    size = weights[0].element_size() if weights else 0
    width = weights[0].numel() if weights else 0
    return KernelCall("layer_norm_backward", (rows, width, size, len(weights), inputs, grad))


READERS: dict[str, Reader] = {
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _layer_norm),
    **dict.fromkeys(
        ("native_layer_norm_backward", "_fused_rms_norm_backward"), _layer_norm_backward
    ),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    "_softmax_backward_data": _softmax_backward,
    "_safe_softmax": _safe_softmax,
}
