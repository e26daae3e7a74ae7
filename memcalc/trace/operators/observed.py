"""Quantization-aware training: numbers are rounded to a range that is observed, set or learned.

Some of its operators have no fake kernel, and some are made of others on CUDA. Sources (2.13):
aten/src/ATen/native/quantized/ cuda/FusedObsFakeQuant.cu, FakeQuantPerTensorAffine.cpp,
FakeQuantPerChannelAffine.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_aten = torch.ops.aten
_BY_CHANNEL = _aten.fake_quantize_per_channel_affine_cachemask.default
_BY_TENSORS = _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default


def _observed(
    tensor: torch.Tensor,
    observes: torch.Tensor,
    rounds: torch.Tensor,
    least: torch.Tensor,
    most: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    averaging: float,
    quant_min: int,
    quant_max: int,
    channel: int,
    by_channel: bool = False,
    symmetric: bool = False,
) -> Any:
    """Ranges that are empty get their size here."""
    whole = tensor.contiguous()
    if not by_channel:
        torch.aminmax(whole)
        return _BY_TENSORS(tensor, scale, zero_point, rounds, quant_min, quant_max)
    rows = tensor if tensor.dim() == 2 else tensor.transpose(0, channel).flatten(1)
    if not least.numel():
        count = tensor.shape[channel]
        for limit, value in ((least, math.inf), (most, -math.inf)):
            limit.resize_(count).fill_(value)
        scale.resize_(count)
        zero_point.resize_(count)
    torch.aminmax(rows, dim=1)
    del rows
    if rounds.item():
        # The channels are the first dimension here, whichever was observed.
        return _BY_CHANNEL(tensor, scale, zero_point, 0, quant_min, quant_max)
    mask = torch.ones_like(tensor, dtype=torch.bool)
    return tensor.clone(), mask


def _rounded(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """And the mask of what lies in the range."""
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


def _rounded_by_channel(
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether zero points of whole numbers lie in the range is read."""
    if not zero_point.is_floating_point():
        torch.aminmax(zero_point)
    return _rounded(tensor)


def _by_learned(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    """One scale is read, and no tensor is made of it."""
    return _rounded(tensor)[0]


def _by_learned_channels(
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, *rest: Any
) -> torch.Tensor:
    near = zero_point.round()
    whole = near.to(torch.int32)
    del near
    return _rounded_by_channel(tensor, scale, whole)[0]


def _to_learned(
    grad: torch.Tensor, tensor: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What each number adds to the gradients of scale and zero point is made first."""
    out, scales, points = (torch.empty_like(tensor) for _ in range(3))
    return out, scales.sum().unsqueeze(0), points.sum().unsqueeze(0)


def _to_learned_channels(
    grad: torch.Tensor,
    tensor: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    channel: int,
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = [one.float() for one in (tensor, grad, scale, zero_point)]
    near = given[3].round()
    torch.aminmax(near)
    out, scales, points = (torch.empty_like(given[0]) for _ in range(3))
    others = [at for at in range(tensor.dim()) if at != channel]
    found = out, scales.sum(others), points.sum(others)
    del points, scales, near, given
    return found


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten._fused_moving_avg_obs_fq_helper.default: (_observed, ""),
    _BY_CHANNEL: (_rounded_by_channel, ""),
    _BY_TENSORS: (_rounded, ""),
    _aten.fake_quantize_per_tensor_affine_cachemask.default: (_rounded, ""),
    _aten._fake_quantize_learnable_per_tensor_affine.default: (_by_learned, ""),
    _aten._fake_quantize_learnable_per_channel_affine.default: (_by_learned_channels, ""),
    _aten._fake_quantize_learnable_per_tensor_affine_backward.default: (_to_learned, ""),
    _aten._fake_quantize_learnable_per_channel_affine_backward.default: (_to_learned_channels, ""),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
