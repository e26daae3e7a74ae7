"""Which kernel PyTorch's scaled dot-product attention runs on CUDA.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, ``select_sdp_backend``, PyTorch 2.11
to 2.13; checked case by case against what PyTorch's own code chooses. Before 2.2: ``older``.
"""

from __future__ import annotations

from memcalc.kernels.attention import older
from memcalc.kernels.attention.call import SHARED_SINCE, AttentionCall, Backend
from memcalc.kernels.target import Target

_CUDNN_FIRST_SINCE = (2, 11)
"""Before, cuDNN is asked last, if at all: 2.4 has it off (ATen/Context.h), and 2.5.1 to 2.8 were
asked with cuDNN 9.1 to 9.19. 2.10 would ask it first, but for the cuDNN of its wheel (9.10), which
is too old.
"""
_WIDEST_SINCE = (2, 3)
"""The first to train heads above 224 by flash attention on 8.6 and 8.9 (2.2.2 and 2.4.1 asked)."""


def choose(
    call: AttentionCall, target: Target, allowed: frozenset[Backend] | None = None
) -> Backend:
    """Choose as PyTorch does on this target.

    Args:
        call: shapes, type and options of the call.
        target: GPU and PyTorch version.
        allowed: the backends that are enabled; ``None``: all.
    """
    enabled = allowed if allowed is not None else frozenset(Backend)
    if target.torch < older.SECOND_FLASH_SINCE:
        asked = (one for one in older.order(call, target) if one in enabled)
        return next((one for one in asked if _OLDER_ABLE[one](call, target)), Backend.MATH)
    order = [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN]
    preferred = target.architecture.cudnn_attention_first and target.torch >= _CUDNN_FIRST_SINCE
    if target.cudnn_attention and preferred:
        order = [Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH]
    for backend in order:
        if backend in enabled and _ABLE[backend](call, target):
            return backend
    return Backend.MATH


def _math(call: AttentionCall, target: Target) -> bool:
    return True


def _flash(call: AttentionCall, target: Target) -> bool:
    if (
        not target.architecture.sm80
        or not call.half
        or call.mask
        or not call.heads_match(target.torch)
    ):
        return False
    if not call.head_dim == call.value_dim <= 256 or not call.q_len or not call.k_len:
        return False
    if call.causal and call.q_len != call.k_len:
        return False
    if target.architecture.narrow_flash and call.needs_grad:
        if 192 < call.head_dim <= 224:
            return False
        if call.head_dim > 224 and (call.dropout > 0 or target.torch < _WIDEST_SINCE):
            return False
    return True


def _efficient(call: AttentionCall, target: Target) -> bool:
    if call.dtype not in ("float16", "float32", "bfloat16"):
        return False
    if call.dtype == "bfloat16" and not target.architecture.sm80:
        return False
    shared = call.heads_match(target.torch) and target.torch >= SHARED_SINCE
    if call.heads != call.kv_heads and not shared:
        return False
    alignment = 8 if call.half else (4 if target.architecture.sm80 else 1)
    if call.head_dim % alignment or call.value_dim % alignment:
        return False
    return bool(call.q_len and call.k_len)


def _cudnn(call: AttentionCall, target: Target) -> bool:
    if not call.half or not target.architecture.sm80 or call.mask_needs_grad:
        return False
    if not call.heads_match(target.torch) or call.head_dim % 8 or call.value_dim % 8:
        return False
    wide = target.architecture.cudnn_wide_heads and target.torch < (2, 15)
    if max(call.head_dim, call.value_dim) > (256 if wide else 128):
        return False
    if call.dropout > 0 and target.torch >= (2, 13):
        return False
    return call.k_len > 1


_ABLE = {
    Backend.FLASH: _flash,
    Backend.EFFICIENT: _efficient,
    Backend.CUDNN: _cudnn,
    Backend.MATH: _math,
}
_OLDER_ABLE = {
    Backend.FLASH: older.flash,
    Backend.EFFICIENT: older.efficient,
    Backend.MATH: _math,
}
