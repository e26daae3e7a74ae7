"""What decides which attention kernel runs: a call, and the kernels there are."""

from __future__ import annotations

from enum import StrEnum

import msgspec

SHARED_SINCE = (2, 14)


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
    batch: int = 1
    """Only PyTorch before 2.2 asks for it."""
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
        if self.heads == self.kv_heads or (self.kv_heads == 1 and torch >= SHARED_SINCE):
            return True
        return self.grouped and self.heads % self.kv_heads == 0
