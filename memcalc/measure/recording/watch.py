"""Measures how far memory rises above the start of a code block."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.engine.patches import Patches
from memcalc.measure.meters import CpuMeter
from memcalc.records.trace import Phase


def has_cuda() -> bool:
    """Does PyTorch see a GPU?"""
    return torch.cuda.is_available()


class CudaWatch:
    """The caching allocator of every visible GPU; the one that rose most counts.

    A program that resets the peaks itself loses nothing here: they are read before.
    """

    def __init__(self, metric: str) -> None:
        self._key = f"{metric}_bytes.all"
        self._start: list[int] = []
        self._peak: list[int] = []
        self._patches = Patches()

    def begin(self) -> None:
        """From here on."""
        torch.cuda.init()
        if self._key.startswith("reserved"):
            torch.cuda.empty_cache()
        self._peak = [0] * torch.cuda.device_count()
        self._start = self._read("current")
        for index in range(len(self._start)):
            torch.cuda.reset_peak_memory_stats(index)
        name, also = "reset_peak_memory_stats", (torch.cuda,)
        self._patches.wrap(torch.cuda.memory, name, self._keep_and_reset, also)

    def end(self) -> int:
        """Bytes of the peak above the beginning, on the GPU where it is highest."""
        self._patches.undo()
        self._keep()
        return max(peak - start for peak, start in zip(self._peak, self._start, strict=True))

    def _keep_and_reset(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self._keep()
        original(*args, **kwargs)

    def _keep(self) -> None:
        self._peak = [max(pair) for pair in zip(self._peak, self._read("peak"), strict=True)]

    def _read(self, kind: str) -> list[int]:
        found = []
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
            found.append(torch.cuda.memory_stats(index).get(f"{self._key}.{kind}", 0))
        return found


class CpuWatch:
    """PyTorch's CPU allocator, which gives what is requested: requested and allocated are one.

    The profiler does not see memory freed that was there before it began, so freeing it makes no
    room here, as it does on CUDA.
    """

    def __init__(self) -> None:
        self._meter = CpuMeter()

    def begin(self) -> None:
        """From here on."""
        self._meter.begin()

    def end(self) -> int:
        """Bytes of the peak above the beginning."""
        return self._meter.end(Phase.STEP, 0).requested
