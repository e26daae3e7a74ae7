"""Which kernel PyTorch's scaled dot-product attention runs on CUDA.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, ``select_sdp_backend``, PyTorch 2.11
to 2.13; checked case by case against what PyTorch's own code chooses.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from memcalc.kernels.target import Target

_SHARED_SINCE = (2, 14)


class Backend(StrEnum):
    """The four implementations behind ``scaled_dot_product_attention``."""

    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    MATH = "math"


class AttentionCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of attention: query (B, H, Sq, D), key (B, Hk, Sk, D), value (B, Hk, Sk, Dv)."""

    heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int
    value_dim: int
    dtype: str
    mask: bool = False
    mask_needs_grad: bool = False
    dropout: float = 0.0
    causal: bool = False
    grouped: bool = False
    """``enable_gqa`` was passed."""
    needs_grad: bool = True

    @property
    def half(self) -> bool:
        """Sixteen-bit floating point."""
        return self.dtype in ("float16", "bfloat16")

    def heads_match(self, torch: tuple[int, int]) -> bool:
        """Every query head has a key head of its own, or shares one where that is allowed.

        From 2.14 on all may share one without ``enable_gqa`` (recorded).
        """
        if self.heads == self.kv_heads or (self.kv_heads == 1 and torch >= _SHARED_SINCE):
            return True
        return self.grouped and self.heads % self.kv_heads == 0


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
    order = [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN]
    if target.cudnn_attention and target.architecture.cudnn_attention_first:
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
        if call.head_dim > 224 and call.dropout > 0:
            return False
    return True


def _efficient(call: AttentionCall, target: Target) -> bool:
    if call.dtype not in ("float16", "float32", "bfloat16"):
        return False
    if call.dtype == "bfloat16" and not target.architecture.sm80:
        return False
    shared = call.heads_match(target.torch) and target.torch >= _SHARED_SINCE
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
