"""Generations of GPUs, a row for each compute capability: what PyTorch and its libraries ask of it.

A new generation is a row here and its cards in configs/gpus.toml.

Sources: CUDA C++ Programming Guide 13, "Technical Specifications per Compute Capability" (threads,
shared memory) and "Arithmetic Instructions" (bf16, TF32); NVIDIA, Matrix Multiplication Background
User's Guide, "Requirements to use Tensor Cores" (tiles); PyTorch 2.11 to 2.13 where a field says
which of its files compares capabilities.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

KIB = 1 << 10


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """One compute capability."""

    name: str
    threads: int
    """Most threads that a multiprocessor holds at once."""
    shared_memory: int
    """Bytes of a multiprocessor."""
    shared_memory_of_block: int
    """Most bytes of them that one block may ask for."""
    tile_bytes: int = 0
    """Sizes of a matrix that Tensor Cores like are multiples of this; 0: there are none."""
    bf16: bool = False
    """Computes in bf16; PyTorch emulates it elsewhere (torch/cuda/__init__.py,
    ``is_bf16_supported``)."""
    tf32: bool = False
    sm80: bool = False
    """Runs the kernels written for capability 8.0: flash attention, cuDNN attention, and the wider
    tiles of efficient attention (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""
    narrow_flash: bool = False
    """Too little shared memory for flash attention's backward of the widest heads (sdp_utils.cpp,
    ``check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120``)."""
    cudnn_attention_first: bool = False
    """PyTorch prefers cuDNN's attention to its own (sdp_utils.cpp, ``priority_order``)."""
    cudnn_wide_heads: bool = False
    """cuDNN's attention takes heads of 256 (sdp_utils.cpp, ``check_cudnn_tensor_shapes``)."""
    cudnn_attention: str = "8.0"
    """Whose engine cuDNN's attention runs: that for 8.0, 9.0 or 10.0."""
    large_workspace_since: tuple[int, int] | None = None
    """The PyTorch that gives cuBLAS its large workspace there first (CublasHandlePool.cpp,
    ``parseChosenWorkspaceSize``; for Blackwell pytorch/pytorch#175344, and readings of 12.0 with
    2.10 and 2.11 that have the small one); ``None``: none does."""
    cub: int = 7
    """Whose tuning CUB's sorts have: 7, 8 or 9; later ones took that of 9 when recorded."""
    cub_choice: int = 7
    """The same of its selections and running sums: 7, 8, 9 or 10."""


_PASCAL = Architecture(
    name="Pascal",
    threads=2048,
    shared_memory=64 * KIB,
    shared_memory_of_block=48 * KIB,
)
_VOLTA = Architecture(
    name="Volta",
    threads=2048,
    shared_memory=96 * KIB,
    shared_memory_of_block=96 * KIB,
    tile_bytes=16,
)
_TURING = replace(
    _VOLTA, name="Turing", threads=1024, shared_memory=64 * KIB, shared_memory_of_block=64 * KIB
)
_A100 = Architecture(
    name="Ampere",
    threads=2048,
    shared_memory=164 * KIB,
    shared_memory_of_block=163 * KIB,
    tile_bytes=128,
    bf16=True,
    tf32=True,
    sm80=True,
    cub=8,
    cub_choice=8,
)
_AMPERE = replace(
    _A100,
    threads=1536,
    shared_memory=100 * KIB,
    shared_memory_of_block=99 * KIB,
    narrow_flash=True,
    cub_choice=7,
)
_HOPPER = replace(
    _A100,
    name="Hopper",
    shared_memory=228 * KIB,
    shared_memory_of_block=227 * KIB,
    cudnn_attention_first=True,
    cudnn_wide_heads=True,
    cudnn_attention="9.0",
    large_workspace_since=(0, 0),
    cub=9,
    cub_choice=9,
)
_BLACKWELL = replace(
    _HOPPER,
    name="Blackwell",
    cudnn_wide_heads=False,
    cudnn_attention="10.0",
    large_workspace_since=(2, 12),
    cub_choice=10,
)
_BLACKWELL_RTX = replace(
    _AMPERE,
    name="Blackwell RTX",
    large_workspace_since=(2, 12),
    cub=9,
    cub_choice=10,
)
ARCHITECTURES = {
    (6, 0): _PASCAL,
    (6, 1): replace(_PASCAL, shared_memory=96 * KIB),
    (7, 0): _VOLTA,
    (7, 2): _VOLTA,
    (7, 5): _TURING,
    (8, 0): _A100,
    (8, 6): _AMPERE,
    # Orin has the shared memory of 8.0, but PyTorch counts it to those that have less.
    (8, 7): replace(_AMPERE, shared_memory=164 * KIB, shared_memory_of_block=163 * KIB),
    (8, 9): replace(_AMPERE, name="Ada"),
    (9, 0): _HOPPER,
    (10, 0): _BLACKWELL,
    (10, 3): _BLACKWELL,
    (12, 0): _BLACKWELL_RTX,
    (12, 1): _BLACKWELL_RTX,
}
