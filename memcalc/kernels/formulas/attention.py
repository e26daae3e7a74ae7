"""What attention takes, by the name of the kernel."""

from __future__ import annotations

from collections.abc import Mapping

from memcalc.kernels.attention import cudnn as cudnn_attention
from memcalc.kernels.attention import fused as fused_attention
from memcalc.kernels.scratch import Formula, Scratch, behind, nested
from memcalc.kernels.target import Target


def _flash_forward(
    target: Target, query: tuple[int, int, int, int], k_len: int, dropout: float
) -> Scratch:
    return Scratch(after=fused_attention.flash_forward(query, k_len, dropout, target))


def _flash_backward(
    target: Target,
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    element: int,
    copies: tuple[int, ...],
) -> Scratch:
    return behind(copies, nested(*fused_attention.flash_backward(query, key, element, target)))


def _efficient_forward(
    target: Target, query: tuple[int, int, int, int], value_dim: int, element: int
) -> Scratch:
    return Scratch(after=fused_attention.efficient_forward(query, value_dim, element))


def _efficient_backward(
    target: Target,
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value_dim: int,
    element: int,
    copies: tuple[int, ...],
) -> Scratch:
    taken = fused_attention.efficient_backward(query, key, value_dim, element, target)
    return behind(copies, taken)


def _cudnn_forward(target: Target) -> Scratch:
    return Scratch(after=cudnn_attention.forward(target))


def _cudnn_backward(
    target: Target,
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value_dim: int,
    grad_copy: int,
) -> Scratch:
    return Scratch(after=cudnn_attention.backward(query, key, value_dim, grad_copy, target))


FORMULAS: Mapping[str, Formula] = {
    "flash_forward": _flash_forward,
    "flash_backward": _flash_backward,
    "efficient_forward": _efficient_forward,
    "efficient_backward": _efficient_backward,
    "cudnn_forward": _cudnn_forward,
    "cudnn_backward": _cudnn_backward,
}
