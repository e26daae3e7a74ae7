"""Recognizes out-of-memory errors and reads the requested and free bytes."""

from __future__ import annotations

import contextlib
import re

import msgspec
import torch

from memcalc.records.measurement import OutOfMemory
from memcalc.records.trace import Phase
from memcalc.units import parse_bytes

_CUDA = re.compile(r"Tried to allocate ([\d.]+ [KMGT]?i?B)")
_CPU = re.compile(r"tried to allocate (\d+) bytes")
_LIBRARIES = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "can't allocate memory",
)
"""What PyTorch's other errors say when memory ran out below its allocator."""


class Noticed(msgspec.Struct):
    """The last request that PyTorch's CUDA allocator had to refuse."""

    asked: int | None = None
    free: int | None = None
    total: int | None = None


def observe() -> Noticed:
    """Be told by the CUDA allocator itself, in exact bytes, when it gives up.

    Source: ``torch.cuda.memory`` and ``torch/csrc/cuda/Module.cpp`` (2.13),
    ``_cuda_attach_out_of_memory_observer(device, asked, total, free)``.
    """
    noticed = Noticed()

    def told(device: int, asked: int, total: int, free: int) -> None:
        noticed.asked, noticed.total, noticed.free = asked, total, free

    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None:
        attach(told)
    return noticed


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _LIBRARIES)


def read(error: BaseException, at: tuple[int, Phase], noticed: Noticed | None) -> OutOfMemory:
    """Put an out-of-memory error into figures; unknown figures stay ``None``."""
    step, phase = at
    text = " ".join(str(error).split())
    asked = noticed.asked if noticed is not None else None
    free = noticed.free if noticed is not None else None
    total = noticed.total if noticed is not None else None
    if asked is None:
        asked = _asked(text)
    if free is None and torch.cuda.is_initialized():
        # A device that failed may refuse to answer, too.
        with contextlib.suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info()
    return OutOfMemory(
        step=step, phase=phase, asked=asked, free=free, total=total, message=text[:300]
    )


def _asked(text: str) -> int | None:
    on_cuda, on_cpu = _CUDA.search(text), _CPU.search(text)
    if on_cuda is not None:
        return parse_bytes(on_cuda[1])
    return int(on_cpu[1]) if on_cpu is not None else None
