"""Batch norm whose moments are those of several processes (``nn.SyncBatchNorm``), in its parts.

PyTorch has them for CUDA alone, and nothing that makes fake results of them.

Source: aten/src/ATen/native/cuda/Normalization.cu (``batch_norm_stats_cuda`` and the four that
follow it) and Normalization.cuh (2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.operators.batch_norm import moments, staged

_aten = torch.ops.aten


def _stats(inputs: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    mean, deviation = moments(inputs, 2)
    staged(inputs, 4)
    return mean, deviation


def _gathered(inputs: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    mean, deviation = moments(inputs, 2)
    return mean, deviation


def _elements(inputs: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(inputs)


def _sums(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
    for_input: bool,
    for_weight: bool,
    for_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    sums: list[torch.Tensor | None] = [None, None]
    if for_input:
        sums = [torch.empty_like(mean) for _ in range(2)]
    grads = [
        torch.empty_like(weight) if wanted and weight is not None else None
        for wanted in (for_weight, for_bias)
    ]
    staged(inputs, 2)
    return *sums, *grads


def _grad(grad: torch.Tensor, inputs: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(inputs)


OVERRIDES: dict[Any, tuple[Callable[..., Any], str]] = {
    _aten.batch_norm_stats.default: (_stats, ""),
    _aten.batch_norm_gather_stats.default: (_gathered, ""),
    _aten.batch_norm_gather_stats_with_counts.default: (_gathered, ""),
    _aten.batch_norm_elemt.default: (_elements, ""),
    _aten.batch_norm_backward_reduce.default: (_sums, ""),
    _aten.batch_norm_backward_elemt.default: (_grad, ""),
}
