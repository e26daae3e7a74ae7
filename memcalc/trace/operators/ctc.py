"""Connectionist temporal classification: a loss whose memory depends on lengths that are read.

Source: aten/src/ATen/native/LossCTC.cpp and aten/src/ATen/native/cuda/LossCTC.cu (2.11, 2.13).
"""

from __future__ import annotations

from typing import Any

import torch

_LARGE = 450
"""From here on (see ``backward``) the gradient is made in several kernels."""


def asks_another(*_: Any) -> bool:
    """PyTorch's own kernels run: cuDNN takes targets of ``int32``, and needs what nobody tells."""
    return False


def forward(
    log_probs: torch.Tensor, targets: torch.Tensor, inputs: Any, lengths: Any, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_ctc_loss`` of (T, N, C): losses (N,), and alpha (N, T, 2 longest + 1)."""
    steps, samples, _labels = log_probs.shape
    _check_lengths(steps, targets, inputs, lengths)
    copies = _copies(log_probs, samples)
    alpha = log_probs.new_empty(samples, steps, 2 * max(lengths, default=0) + 1)
    losses = log_probs.new_empty(samples)
    _drop(copies, 1, 0, 2)
    return losses, alpha


def _check_lengths(steps: int, targets: torch.Tensor, inputs: Any, lengths: Any) -> None:
    """Source: aten/src/ATen/native/cuda/LossCTC.cu, ``ctc_loss_gpu_template`` (2.13)."""
    of = "(while checking arguments for ctc_loss_gpu)"
    longest, most = max(inputs, default=0), max(lengths, default=0)
    if targets.dim() == 2 and targets.shape[1] < most:
        raise RuntimeError(
            f"Expected tensor to have size at least {most} at dimension 1, but got size "
            f"{targets.shape[1]} for argument #2 'targets' {of}"
        )
    if longest > steps:
        raise RuntimeError(
            f"Expected input_lengths to have value at most {steps}, but got value {longest} {of}"
        )


def backward(
    grad: torch.Tensor, log_probs: torch.Tensor, *others: Any, zero_infinity: bool = False
) -> torch.Tensor:
    """``_ctc_loss_backward``: (T, N, C), in a row.

    Many steps or labels take kernels of their own; then infinite losses are cleared in a copy.
    """
    steps, samples, labels = log_probs.shape
    alpha, clears = others[4], zero_infinity or (len(others) > 6 and others[6])
    copies = _copies(log_probs, samples)
    beta = torch.empty_like(alpha)
    out = log_probs.new_empty(log_probs.shape)
    if 2 * steps + samples * 24 // 10 + 2 * labels // 10 > _LARGE:
        _blanks(alpha)
        if clears:
            zero, infinite = log_probs.new_empty(()), log_probs.new_empty(samples, dtype=torch.bool)
            cleared = log_probs.new_empty(log_probs.shape)
            del infinite, zero
            out = cleared
    del beta
    _drop(copies, 1, 0, 2)
    return out


def _copies(log_probs: torch.Tensor, samples: Any) -> list[torch.Tensor | None]:
    """Lengths of targets and inputs, and where targets begin, copied to the device."""
    return [log_probs.new_empty(samples, dtype=torch.long) for _ in range(3)]


def _drop(tensors: list[torch.Tensor | None], *order: int) -> None:
    for number in order:
        tensors[number] = None


def _blanks(alpha: torch.Tensor) -> None:
    """What finds the blanks' share of many steps or labels: log-sum-exp of alpha plus beta."""
    samples, steps, states = alpha.shape
    total = alpha.new_empty(samples, steps, (states + 1) // 2)
    largest = alpha.new_empty(samples, steps, 1)
    sizes = torch.empty_like(largest)
    finite = torch.empty_like(largest, dtype=torch.bool)
    del finite, sizes
    less = torch.empty_like(total)
    sums = torch.empty_like(largest)
    del less, largest, sums, total
