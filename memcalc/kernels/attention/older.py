"""Which attention kernel PyTorch before 2.2 runs on CUDA: flash attention was of version 1.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.h (2.0) and sdp_utils.cpp (2.1),
``priority_order``, ``use_flash_attention`` and ``use_mem_efficient_attention``; held against what
2.0.1 and 2.1.2 choose.
"""

from __future__ import annotations

from memcalc.kernels.attention.call import AttentionCall, Backend
from memcalc.kernels.target import Target

SECOND_FLASH_SINCE = (2, 2)
_MASKS_SINCE = (2, 1)
"""Memory-efficient attention takes masks and dropout, and flash attention runs on Hopper."""
_TURING, _GA102, _HOPPER = (7, 5), (8, 6), (9, 0)
_WIDEST = 128


def order(call: AttentionCall, target: Target) -> tuple[Backend, ...]:
    """In which kernels are asked: memory-efficient attention first where it fills the GPU better.

    Args:
        call: shapes, type and options of the call.
        target: GPU and PyTorch version.
    """
    flash_first = (Backend.FLASH, Backend.EFFICIENT, Backend.MATH)
    efficient_first = (Backend.EFFICIENT, Backend.FLASH, Backend.MATH)
    blocks = call.batch * call.heads
    if call.needs_grad and target.torch >= _MASKS_SINCE:
        return efficient_first if 6 * blocks > call.q_len else flash_first
    fuller = blocks < 60 and blocks * (call.q_len // 64) // 2 >= blocks
    return efficient_first if fuller or call.head_dim == _WIDEST else flash_first


def flash(call: AttentionCall, target: Target) -> bool:
    """Flash attention of version 1 runs it."""
    capability, later = target.capability, target.torch >= _MASKS_SINCE
    if not _TURING <= capability <= (_HOPPER if later else (8, 9)) or not call.half:
        return False
    if call.dtype == "bfloat16" and capability < (8, 0):
        return False
    if call.mask or call.heads != call.kv_heads:
        return False
    narrow = _GA102 <= capability < _HOPPER
    if narrow and call.needs_grad and call.head_dim > 64:
        return False
    return call.head_dim == call.value_dim <= _WIDEST and not call.head_dim % 8


def efficient(call: AttentionCall, target: Target) -> bool:
    """Memory-efficient attention runs it."""
    if call.heads != call.kv_heads or call.dtype not in ("float16", "float32", "bfloat16"):
        return False
    if target.torch < _MASKS_SINCE and (
        call.mask
        or call.dropout > 0
        or target.deterministic
        or (target.capability >= _GA102 and call.head_dim > 64)
    ):
        return False
    by_tensor_cores = call.half and target.capability >= (7, 0)
    alignment = 8 if by_tensor_cores else 4 if target.architecture.sm80 else 1
    return not (call.head_dim % alignment or call.value_dim % alignment)
