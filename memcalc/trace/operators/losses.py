"""Losses that CUDA computes in other steps than fake tensors do, forward and backward.

Sources: aten/src/ATen/native/Loss.cpp and cuda/ Loss.cu, MultiMarginLoss.cu,
MultiLabelMarginCriterion.cu, Activation.cpp (2.11 and 2.13); of older versions what 2.0.1 to 2.4.1
allocate.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.trace.operators import release

_NONE, _MEAN, _SUM = range(3)
_aten = torch.ops.aten


def _number_in(room: torch.Tensor, reduction: int) -> torch.Tensor:
    """A loss for each element becomes one number, which keeps the room of all."""
    if reduction == _NONE:
        return room
    # Made, copied into the room, and freed.
    _ = room.mean() if reduction == _MEAN else room.sum()
    return torch.as_strided(room, (), ())


def cross_entropy_of_two(
    probabilities: torch.Tensor, target: Any, weight: Any = None, reduction: int = _MEAN
) -> torch.Tensor:
    """``binary_cross_entropy``."""
    return _number_in(torch.empty_like(probabilities), reduction)


def cross_entropy_of_logits(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: int = _MEAN,
) -> Any:
    """``binary_cross_entropy_with_logits``."""
    if not release.is_since(2, 4):
        by_parts = _by_logarithm if release.is_since(2, 3) else _by_exponents
        loss = by_parts(logits, target, pos_weight)
    else:
        logarithms = torch.nn.functional.logsigmoid(logits)
        if pos_weight is not None:
            logarithms.mul_((pos_weight - 1).mul(target).add_(1))
        loss = (1 - target).mul_(logits).sub_(logarithms)
    if weight is not None:
        loss.mul_(weight)
    if reduction == _NONE:
        return loss
    return loss.mean() if reduction == _MEAN else loss.sum()


def _by_logarithm(logits: torch.Tensor, target: torch.Tensor, pos_weight: Any) -> torch.Tensor:
    """As 2.3 does: the logarithm is taken behind what it is subtracted from."""
    scale = None if pos_weight is None else (pos_weight - 1).mul(target).add_(1)
    loss = (1 - target).mul_(logits)
    logarithms = torch.nn.functional.logsigmoid(logits)
    return loss.sub_(logarithms if scale is None else scale.mul_(logarithms))


def _by_exponents(logits: torch.Tensor, target: torch.Tensor, pos_weight: Any) -> torch.Tensor:
    """As before 2.3: shifted by the larger of zero and the logit, which lives on to the end."""
    shift = (-logits).clamp_min_(0)
    scale = None if pos_weight is None else (pos_weight - 1).mul(target).add_(1)
    loss = (1 - target).mul_(logits)
    if scale is None:
        loss.add_(shift)
    first, turned = (-shift).exp_(), -logits
    second = (turned - shift).exp_()
    logarithms = first.add_(second).log_()
    loss.add_(logarithms if scale is None else scale.mul_(logarithms.add_(shift)))
    return loss


def soft_margin(logits: torch.Tensor, target: Any, reduction: int = _MEAN) -> torch.Tensor:
    """``soft_margin_loss``."""
    return _number_in(torch.empty_like(logits), reduction)


def soft_margin_backward(
    grad: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """The exponential of the negated target times the input is made in three steps."""
    negated = target.neg()
    products = negated.mul(logits)
    powers = products.exp()
    del products, negated
    out = torch.empty_like(logits)
    del powers
    return out


def multi_margin(
    scores: torch.Tensor,
    target: torch.Tensor,
    p: Any = 1,
    margin: Any = 1,
    weight: Any = None,
    reduction: int = _MEAN,
) -> torch.Tensor:
    """A number for each sample, where there are several and one is wanted."""
    samples = target.numel()
    if reduction == _NONE and target.dim():
        out = scores.new_empty(samples)
        target.contiguous()
        return out
    out, target = scores.new_empty(()), target.contiguous()
    if scores.dim() > 1 and samples > 1:
        each = scores.new_empty(samples)
        _aten.sum.IntList_out(each, [0], out=out)
    return out


def multi_margin_backward(
    grad: torch.Tensor, scores: torch.Tensor, target: torch.Tensor, *_: Any
) -> torch.Tensor:
    """Targets lie in a row here too."""
    out = torch.empty_like(scores, memory_format=torch.contiguous_format)
    target.contiguous()
    return out


def like_input(grad: Any, inputs: torch.Tensor, *_: Any) -> torch.Tensor:
    """A gradient without anything beside it."""
    return torch.empty_like(inputs, memory_format=torch.contiguous_format)


def labels_margin(
    scores: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """``multilabel_margin_loss_forward``: the loss, and which classes are targets."""
    targets = scores.new_empty(target.shape)
    samples = scores.shape[0] if scores.dim() > 1 else 1
    if scores.dim() < 2:
        return scores.new_empty(()), targets
    each = scores.new_empty(samples)
    if reduction == _NONE:
        return each, targets
    out = scores.new_empty(())
    _aten.sum.IntList_out(each, [0], out=out)
    return out, targets


def log_sigmoid(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """CUDA has no use for the buffer that backward gets on the CPU."""
    return torch.empty_like(inputs), inputs.new_empty(0)


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten.binary_cross_entropy.default: (cross_entropy_of_two, ""),
    _aten.binary_cross_entropy_with_logits.default: (cross_entropy_of_logits, ""),
    _aten.soft_margin_loss.default: (soft_margin, ""),
    _aten.soft_margin_loss_backward.default: (soft_margin_backward, ""),
    _aten.multi_margin_loss.default: (multi_margin, ""),
    _aten.multi_margin_loss_backward.default: (multi_margin_backward, ""),
    _aten.multilabel_margin_loss_forward.default: (labels_margin, ""),
    _aten.multilabel_margin_loss_backward.default: (like_input, ""),
    _aten.fractional_max_pool3d_backward.default: (like_input, ""),
    _aten.log_sigmoid_forward.default: (log_sigmoid, ""),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
