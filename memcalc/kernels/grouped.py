"""What a product of groups of rows takes beside its output: how groups lie, and its descriptors.

Only in bf16, on GPUs for which there is a kernel of groups; elsewhere each group is a product.
Source: aten/src/ATen/native/cuda/GroupMM.cu, ``bf16bf16_grouped_gemm_impl_sm90_sm100`` (2.11 and
2.13); the workspace is CUTLASS', the same for each multiprocessor, and was read off requests of
PyTorch's CUDA build with 78 to 160 of them.
"""

from __future__ import annotations

from memcalc.kernels.scratch import Allocations, nested, round_up
from memcalc.kernels.target import Target

_POINTERS, _REST = 3 * 8, 3 * 4 + 3 * 8
"""Bytes of a group: of its pointers, whose number is even, and of its sizes and strides."""
_HOPPER = 512
_SMALL_BLACKWELL, _LARGE_BLACKWELL = 5376, 5888
_SMALL = 128
"""Rows or columns of one group up to which smaller tiles are taken."""


def grouped_mm(groups: int, size: tuple[int, int], shared: int, target: Target) -> Allocations:
    """Made after the output.

    Args:
        groups: how many.
        size: rows and columns of all that is multiplied.
        shared: which of the two the groups share between them; 2: neither.
        target: the GPU.
    """
    if target.capability[0] not in (9, 10):
        return ()
    told = groups * _REST + round_up(groups, 2) * _POINTERS
    each = [number // groups if which == shared else number for which, number in enumerate(size)]
    taken = _HOPPER
    if target.capability[0] == 10:
        taken = _SMALL_BLACKWELL if min(each) <= _SMALL else _LARGE_BLACKWELL
    return nested(told, target.multiprocessors * taken)
