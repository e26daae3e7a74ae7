"""The GPU and the PyTorch that will run: what decides which kernels run and what they take."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from memcalc.kernels.architectures import ARCHITECTURES, Architecture


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about device and library that changes a byte of a kernel's memory."""

    capability: tuple[int, int]
    """Compute capability, such as (9, 0)."""
    multiprocessors: int
    torch: tuple[int, int]
    """PyTorch's version, such as (2, 13)."""
    cudnn_attention: bool = True
    """False where the run deprioritises or disables cuDNN attention."""
    cudnn: bool = True
    """False where cuDNN is switched off (``torch.backends.cudnn.enabled``)."""
    cudnn_benchmark: bool = False
    """Its engines are tried and the fastest one is kept (``torch.backends.cudnn.benchmark``)."""

    cudnn_deterministic: bool = False
    """Engines whose results differ from run to run are left out
    (``torch.backends.cudnn.deterministic``, ``torch.use_deterministic_algorithms``)."""

    deterministic: bool = False
    """Attention's gradients are summed in one order (``torch.use_deterministic_algorithms``, unless
    it is to warn only)."""

    ordered: bool = False
    """Sums do not differ from run to run (``torch.use_deterministic_algorithms``, if only to
    warn)."""

    cublas_workspace: int | None = None
    """Bytes of cuBLAS' workspace where ``CUBLAS_WORKSPACE_CONFIG`` says them."""

    @property
    def architecture(self) -> Architecture:
        """What its capability means for PyTorch."""
        return ARCHITECTURES[self.capability]

    @property
    def bf16(self) -> bool:
        """It computes in that type, else cuDNN has no recurrent layers in it."""
        return self.architecture.bf16

    @property
    def groups_experts(self) -> bool:
        """Products of experts run as one in transformers, else one by one.

        Source: transformers/integrations/moe.py, ``_can_use_grouped_mm`` (5.23).
        """
        return self.capability >= (8, 0)


class WatchedTarget:
    """A target that says what was asked of it, by name, as soon as it is."""

    def __init__(self, target: Target, asked: Callable[[str, Any], None]) -> None:
        self._target = target
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        self._asked(name, value)
        return value


def cudnn_enabled() -> bool:
    """CuDNN runs, unless ``MEMCALC_NO_CUDNN`` says that the run to compare with had none."""
    return not os.environ.get("MEMCALC_NO_CUDNN")
