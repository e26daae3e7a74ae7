"""Compute capabilities of NVIDIA's GPUs: properties of a multiprocessor.

A new generation is a row here and its cards in configs/gpus.toml.

Sources: CUDA C++ Programming Guide 13, "Technical Specifications per Compute Capability" (threads,
shared memory) and "Arithmetic Instructions" (bf16, TF32); NVIDIA, Matrix Multiplication Background
User's Guide, "Requirements to use Tensor Cores" (tiles).
"""

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
)
_AMPERE = replace(_A100, threads=1536, shared_memory=100 * KIB, shared_memory_of_block=99 * KIB)
_HOPPER = replace(_A100, name="Hopper", shared_memory=228 * KIB, shared_memory_of_block=227 * KIB)
_BLACKWELL = replace(_HOPPER, name="Blackwell")
_BLACKWELL_RTX = replace(_AMPERE, name="Blackwell RTX")
ARCHITECTURES = {
    (6, 0): _PASCAL,
    (6, 1): replace(_PASCAL, shared_memory=96 * KIB),
    (7, 0): _VOLTA,
    (7, 2): _VOLTA,
    (7, 5): _TURING,
    (8, 0): _A100,
    (8, 6): _AMPERE,
    (8, 7): replace(_AMPERE, shared_memory=164 * KIB, shared_memory_of_block=163 * KIB),
    (8, 9): replace(_AMPERE, name="Ada"),
    (9, 0): _HOPPER,
    (10, 0): _BLACKWELL,
    (10, 3): _BLACKWELL,
    (12, 0): _BLACKWELL_RTX,
    (12, 1): _BLACKWELL_RTX,
}


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
