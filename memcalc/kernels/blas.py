"""The workspace of cuBLAS, which PyTorch takes from its caching allocator.

Up to 2.14 it is taken at the first matrix product of a thread and stream and kept; backward runs in
a thread of its own, so a training step holds two. From 2.15 on each product takes one and gives it
back, unless ``TORCH_CUBLAS_WORKSPACE_CACHE`` is set. Source:
aten/src/ATen/cuda/CublasHandlePool.cpp, ``parseChosenWorkspaceSize`` and
``getCUDABlasLtWorkspace``; ATen/cuda/CUDAContextLight.h (2.15), ``CUDABlasHandleWithWorkspace``;
326 operators recorded with 2.15.
"""

from __future__ import annotations

import re

from memcalc.kernels.target import Target

_LARGE = 32 << 20
_SMALL = 8_519_680
"""4096 KiB x 2 + 16 KiB x 8, the setting ``:4096:2:16:8``."""
_LT = 1 << 20
CONFIG = "CUBLAS_WORKSPACE_CONFIG"
"""Variable of the environment; PyTorch reads it at the first product, and ``:4096:8`` or ``:16:8``
is what ``torch.use_deterministic_algorithms`` wants there."""
_PIECE = re.compile(r":(\d+):(\d+)")
_GIVEN_BACK_SINCE = (2, 15)
_LT_KEPT_SINCE = (2, 9)
_OUTER_BY_ITSELF_SINCE = (2, 13)

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


def configured(text: str) -> int | None:
    """Bytes that ``CUBLAS_WORKSPACE_CONFIG`` asks for: KiB and how many, such as ``:4096:8``.

    ``None``: it says nothing that PyTorch understands, which takes its default then.
    """
    pieces = _PIECE.findall(text)
    return sum(int(size) * int(count) for size, count in pieces) << 10 if pieces else None


def workspace(target: Target) -> int:
    """Bytes of one thread's workspace."""
    if target.cublas_workspace is not None:
        return target.cublas_workspace
    since = target.architecture.large_workspace_since
    return _LARGE if since is not None and target.torch >= since else _SMALL


def multiplies(left: tuple[int, ...], right: tuple[int, ...], torch: tuple[int, int]) -> bool:
    """A batch is cuBLAS': for columns and rows this PyTorch may have a kernel of its own.

    Source: torch/_native/ops/bmm_outer_product/triton_impl.py (2.13).

    Args:
        left: shape (B, M, K) of the first factors.
        right: shape (B, K, N) of the second.
        torch: major and minor of the release.
    """
    return torch < _OUTER_BY_ITSELF_SINCE or left[2] != 1 or right[1] != 1


def is_kept(torch: tuple[int, int]) -> bool:
    """With this PyTorch a thread's next product finds the workspace of the one before."""
    return torch < _GIVEN_BACK_SINCE


def is_lt_kept(torch: tuple[int, int]) -> bool:
    """With this PyTorch a thread keeps cuBLASLt's workspace.

    Before, each product allocated its own and gave it back as it returned. Source:
    aten/src/ATen/cuda/CUDABlas.cpp, ``gemm_and_bias`` (2.6, ``allocator.allocate``); recorded with
    2.6.0 and 2.8.0, which give it back, and 2.9.1, which keeps it.
    """
    return is_kept(torch) and torch >= _LT_KEPT_SINCE


def is_lt(
    added: tuple[int, ...], steps: tuple[int, ...], right: tuple[int, ...], element: int,
    torch: tuple[int, int],
) -> bool:  # fmt: skip
    """A product to which something is added is cuBLASLt's, with this PyTorch.

    That is where a row without gaps is added; from 2.15 on also where 16-bit numbers are added in
    rows. Factors are taken to be one. Source: aten/src/ATen/native/cuda/Blas.cpp,
    ``addmm_out_cuda_impl``; 41 calls recorded with 2.15 in each of three types.

    Args:
        added: sizes of what is added.
        steps: its strides.
        right: sizes of the matrix on the right.
        element: bytes of an element.
        torch: version that runs.
    """
    if min(right) <= 1:
        return False
    if is_kept(torch):
        return len(added) == 1
    if len(added) == 1 or (len(added) == 2 and added[0] == 1):
        return steps[-1] == 1 and added[-1] == right[1]
    return len(added) == 2 and added[1] == right[1] and steps[1] == 1 and element == 2


def lt_workspace(target: Target) -> int:
    """Bytes that cuBLASLt takes: beside cuBLAS', from a thread's first product with a bias on.

    Seen: 1 MiB with PyTorch 2.11, kept as ``is_lt_kept`` says; nothing with 2.13, which lets both
    libraries share one; from 2.15 on 1 MiB in place of cuBLAS' own.
    """
    return _LT if target.torch < (2, 13) or not is_kept(target.torch) else 0
