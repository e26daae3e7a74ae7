"""The GPU and the PyTorch that a question asks about."""

from __future__ import annotations

import msgspec

from memcalc.catalog.capabilities import ARCHITECTURES, Architecture


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What of a card and of PyTorch decides which kernels run."""

    capability: tuple[int, int]
    """Compute capability, such as (9, 0)."""
    multiprocessors: int
    torch: tuple[int, int]
    """PyTorch's version, such as (2, 13)."""

    @property
    def architecture(self) -> Architecture:
        """What its capability means."""
        return ARCHITECTURES[self.capability]
