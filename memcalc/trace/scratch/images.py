"""Reads what gradients of images and pools copy, where channels do not lie as they should."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed
from memcalc.trace.torch_private.tensors import suggest_memory_format


def _first_in_rows(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """A gradient, or an input, that does not lie in rows is copied, after the result is made.

    Seen with PyTorch 2.13's CUDA build, as are the two below.
    """
    return _copied(args[0], torch.contiguous_format)


def _gradient_of_image(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The same, but channels may come last."""
    return _copied(args[0], suggest_memory_format(args[0]))


def _pool(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """An input that lies across is copied; channels may come last."""
    return _copied(args[0], suggest_memory_format(args[0]))


def _nearest(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The same, unless the image keeps its size, where it is copied as it is."""
    return None if out.shape == args[0].shape else _pool(args, out)


def _row_or_volume(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Nothing may come last: the result is copied too, if it does."""
    return _in_rows(out, args[0])


def _gradient_of_volumes(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """A gradient is copied, but channels come last where they do in the input."""
    return _copied(args[0], suggest_memory_format(args[1]))


def _gradient_of_pool(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Input and gradient are copied, but channels come last where they do in the input."""
    layout = suggest_memory_format(args[1])
    sizes = [bytes_of(t) for t in args[1::-1] if not t.is_contiguous(memory_format=layout)]
    return fixed(after=nested(*sizes)) if sizes else None


def _gradient_of_mean(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """A gradient is copied, but not where channels come last in the input: strides are told."""
    rows = suggest_memory_format(args[1]) is torch.contiguous_format
    return _copied(args[0], torch.contiguous_format) if rows else None


def _adaptive_mean(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """An input that lies across is copied first; channels may come last."""
    if args[0].is_contiguous(memory_format=suggest_memory_format(args[0])):
        return None
    return fixed(before=(bytes_of(args[0]),), after=(~0,))


def _antialiased(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    return _in_rows(out, args[0])


def _adaptive_max_pool(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """Input and outputs are copied where they do not lie in rows.

    Source: aten/src/ATen/native/cuda/AdaptiveMaxPooling2d.cu (2.13).
    """
    return _in_rows(*out, args[0])


def _adaptive_max_pool_backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    return _in_rows(args[0], args[2], out)


def _in_rows(*tensors: torch.Tensor) -> KernelCall | None:
    """Copies of those that do not lie in rows, in this order."""
    sizes = [bytes_of(t) for t in tensors if not t.is_contiguous()]
    return fixed(after=nested(*sizes)) if sizes else None


def _copied(grad: torch.Tensor, layout: torch.memory_format) -> KernelCall | None:
    if grad.is_contiguous(memory_format=layout):
        return None
    return fixed(after=(bytes_of(grad), ~0))


_IN_ROWS = (
    *("_log_softmax_backward_data", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *("reflection_pad1d_backward", "reflection_pad2d_backward"),
    "avg_pool3d_backward",
    *("upsample_bicubic2d_backward", "_upsample_bicubic2d_aa_backward"),
    "_upsample_bilinear2d_aa_backward",
    *("upsample_nearest1d_backward", "upsample_linear1d_backward"),
    *("upsample_nearest3d_backward", "upsample_trilinear3d_backward"),
)
_IMAGES = (
    "upsample_nearest2d_backward",
    "_upsample_nearest_exact2d_backward",
    "upsample_bilinear2d_backward",
)
_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d")
_NEAREST = ("upsample_nearest2d", "_upsample_nearest_exact2d")
_ROWS_AND_VOLUMES = (
    *("upsample_nearest1d", "_upsample_nearest_exact1d"),
    *("upsample_nearest3d", "_upsample_nearest_exact3d"),
)
_POOLS_IN_ROWS = ("_adaptive_avg_pool3d", "adaptive_max_pool3d")
READERS: dict[str, Reader] = {
    **dict.fromkeys((*_IN_ROWS, *_POOLS_IN_ROWS), _first_in_rows),
    **dict.fromkeys(_IMAGES, _gradient_of_image),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(_NEAREST, _nearest),
    **dict.fromkeys(_ROWS_AND_VOLUMES, _row_or_volume),
    "max_pool3d_with_indices_backward": _gradient_of_volumes,
    "max_pool2d_with_indices_backward": _gradient_of_pool,
    "avg_pool2d_backward": _gradient_of_pool,
    "_adaptive_avg_pool2d_backward": _gradient_of_mean,
    "_adaptive_avg_pool2d": _adaptive_mean,
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _antialiased),
    "adaptive_max_pool2d": _adaptive_max_pool,
    "adaptive_max_pool2d_backward": _adaptive_max_pool_backward,
}
