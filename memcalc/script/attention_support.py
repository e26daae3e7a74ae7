"""What a program asks of attention before it calls it: whether a kernel would take a call.

Jagged tensors (``torch.nested``) choose their kernel by the same questions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.kernels.attention.call import Backend
from memcalc.kernels.attention.choice import choose
from memcalc.kernels.target import Target
from memcalc.script.patches import Patches
from memcalc.trace.operators.attention import described, lies_across

_DIMENSIONS = 4
_ROWS = 2
"""Stands for a number of rows that is a symbol: that there are any is all the choice asks of it."""


def install(patches: Patches, target: Target) -> None:
    """Answer ``torch.backends.cuda.can_use_flash_attention`` and its like as the GPU does.

    A build without CUDA can use none.
    """
    cuda = torch.backends.cuda
    for name, backend, enabled in (
        ("_can_use_flash_attention", Backend.FLASH, cuda.flash_sdp_enabled),
        ("_can_use_mem_efficient_attention", Backend.EFFICIENT, cuda.mem_efficient_sdp_enabled),
        ("_can_use_cudnn_attention", Backend.CUDNN, cuda.cudnn_sdp_enabled),
    ):
        patches.set(torch._C, name, _able(target, backend, enabled))


def _able(target: Target, backend: Backend, enabled: Callable[[], bool]) -> Callable[..., bool]:
    def answer(params: Any, debug: bool = False) -> bool:
        tensors = params.query, params.key, params.value
        if not enabled() or params.query.dim() != _DIMENSIONS:
            return False
        if lies_across(*tensors, params.attn_mask):
            return False
        call = replace(
            described(*tensors, params.attn_mask),
            q_len=_rows(params.query),
            k_len=_rows(params.key),
            dropout=params.dropout,
            causal=params.is_causal,
            grouped=params.enable_gqa,
        )
        return choose(call, target, frozenset({backend})) is backend

    return answer


def _rows(tensor: torch.Tensor) -> int:
    rows = tensor.shape[-2]
    return rows if isinstance(rows, int) else _ROWS
