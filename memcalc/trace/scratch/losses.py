"""Reads what the loss of classes copies: what does not lie in rows, while its kernel runs.

Source: aten/src/ATen/native/cuda/NLLLoss2d.cu and Loss.cu; compared with PyTorch 2.13's CUDA build
event by event.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed

_NONE = 0
"""``Reduction::None``."""


def _copied(*tensors: torch.Tensor | None) -> KernelCall | None:
    """These one after the other, let go of in the other order; without a tensor there is none."""
    there = [one for one in tensors if one is not None]
    sizes = [bytes_of(one) for one in there if not one.is_contiguous()]
    return fixed(after=(*sizes, *(~at for at in reversed(range(len(sizes)))))) if sizes else None


def _forward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    scores, target, weight = args[:3]
    return _copied(scores, target, weight)


def _backward(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    grad, scores, target, weight = args[:4]
    return _copied(target, scores, grad, weight)


def _forward_of_images(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    scores, target, weight, reduction = args[:4]
    return _copied(weight) if reduction == _NONE else _copied(scores, weight, target)


READERS: dict[str, Reader] = {
    "nll_loss_forward": _forward,
    "nll_loss_backward": _backward,
    "nll_loss2d_forward": _forward_of_images,
}
