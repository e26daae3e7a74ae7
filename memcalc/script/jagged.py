"""Jagged tensors (``torch.nested``): the attention that they take is that of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from memcalc.kernels.attention.call import AttentionCall, Backend
from memcalc.kernels.attention.choice import choose
from memcalc.kernels.target import Target
from memcalc.script.patches import Patches

_ROWS = 2
"""Some number of rows: that there are any is all that the choice asks of it."""


def install(patches: Patches, target: Target) -> None:
    """Answer ``can_use_flash_attention`` and its like; a build without CUDA can use none."""
    cuda = torch.backends.cuda
    asked = {
        "can_use_flash_attention": (Backend.FLASH, cuda.flash_sdp_enabled),
        "can_use_efficient_attention": (Backend.EFFICIENT, cuda.mem_efficient_sdp_enabled),
    }

    def able(backend: Backend, enabled: Callable[[], bool]) -> Callable[..., bool]:
        def answer(original: Any, params: Any, debug: bool = False) -> bool:
            return enabled() and choose(_call(params), target, frozenset({backend})) is backend

        return answer

    def act(module: ModuleType) -> None:
        for name, how in asked.items():
            patches.wrap(module, name, able(*how))

    patches.when_imported("torch.nested._internal.sdpa", act)


def _call(params: Any) -> AttentionCall:
    query, key, value = params.query, params.key, params.value
    return AttentionCall(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        q_len=_ROWS,
        k_len=_ROWS,
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
        dtype=str(query.dtype).removeprefix("torch."),
        mask=params.attn_mask is not None,
        dropout=params.dropout,
        causal=params.is_causal,
        grouped=params.enable_gqa,
        needs_grad=torch.is_grad_enabled() and query.requires_grad,
    )
