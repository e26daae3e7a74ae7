"""The workspace that cuBLAS keeps for each thread that multiplies matrices.

PyTorch takes it from its caching allocator at the first matrix product of a thread and stream
and keeps it; backward runs in a thread of its own, so a training step holds two.
Source: aten/src/ATen/cuda/CublasHandlePool.cpp, ``parseChosenWorkspaceSize`` and
``getCUDABlasLtWorkspace``.
"""

from __future__ import annotations

from memcalc.kernels.target import Target

_LARGE = 32 << 20
_SMALL = 8_519_680
"""4096 KiB x 2 + 16 KiB x 8, the setting ``:4096:2:16:8``."""
_LT = 1 << 20

PRODUCTS = frozenset(
    [
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addmv",
        "mv",
        "addbmm",
        "_addmm_activation",
        "dot",
        "vdot",
        "linear",
        "_scaled_mm",
    ]
)


def workspace(target: Target) -> int:
    """Bytes of one thread's workspace."""
    since = target.architecture.large_workspace_since
    return _LARGE if since is not None and target.torch >= since else _SMALL


def lt_workspace(target: Target) -> int:
    """Bytes that cuBLASLt keeps beside it, from a thread's first product with a bias on.

    Seen: 1 MiB with PyTorch 2.11, nothing with 2.13, which lets both libraries share one.
    """
    return _LT if target.torch < (2, 13) else 0
