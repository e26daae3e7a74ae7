"""Softmax as PyTorch before 1.11 differentiates it: what went in is kept for backward too.

Source: tools/autograd/derivatives.yaml (1.10), ``_softmax: _softmax_backward_data(grad, result,
dim, self)``; from 1.11 on the last is the type alone.
"""

from typing import Any

import torch


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        out = scores.softmax(dim=-1)
        ctx.save_for_backward(scores, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        scores, out = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, out, -1, scores.dtype)


def softmax_of_before(scores: torch.Tensor) -> torch.Tensor:
    """Over the last dimension; under autocast of what is cast to float32."""
    wide = scores.float() if torch.is_autocast_enabled(scores.device.type) else scores
    made: torch.Tensor = _Softmax.apply(wide)
    return made
