"""Precisions: the model's dtype, autocast, gradient scaling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import torch


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored and in what the forward computes."""

    weights: torch.dtype
    autocast: torch.dtype | None = None
    scaled: bool = False
    """Losses are scaled by ``torch.amp.GradScaler``."""

    def context(self, device_type: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Make the context that the forward runs in."""
        if self.autocast is None:
            return contextlib.nullcontext
        return lambda: torch.autocast(device_type, dtype=self.autocast)

    def scaler(self, device_type: str) -> Any:
        """Make the gradient scaler, or ``None`` where there is none."""
        return torch.amp.GradScaler(device_type) if self.scaled else None


PRECISIONS = {
    "fp32": Precision(weights=torch.float32),
    "tf32": Precision(weights=torch.float32),
    "amp-fp16": Precision(weights=torch.float32, autocast=torch.float16, scaled=True),
    "amp-bf16": Precision(weights=torch.float32, autocast=torch.bfloat16),
    "bf16+amp": Precision(weights=torch.bfloat16, autocast=torch.bfloat16),
    "bf16": Precision(weights=torch.bfloat16),
    "fp16": Precision(weights=torch.float16),
}
