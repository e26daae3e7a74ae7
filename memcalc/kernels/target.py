"""The GPU and the PyTorch that will run: what decides which kernels run and what they take."""

from __future__ import annotations

import os

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

    cublas_workspace: int | None = None
    """Bytes of cuBLAS' workspace where ``CUBLAS_WORKSPACE_CONFIG`` says them."""

    @property
    def architecture(self) -> Architecture:
        """What its capability means for PyTorch."""
        return ARCHITECTURES[self.capability]


def cudnn_enabled() -> bool:
    """CuDNN runs, unless ``MEMCALC_NO_CUDNN`` says that the run to compare with had none."""
    return not os.environ.get("MEMCALC_NO_CUDNN")
