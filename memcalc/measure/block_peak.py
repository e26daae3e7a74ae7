"""Measures the peak of a block of code, for budgets of tests."""

import torch

from memcalc.engine.counters import Counters
from memcalc.engine.cpu_counters import CpuCounters
from memcalc.engine.patches import Patches
from memcalc.records.trace import Phase


def has_cuda() -> bool:
    """Return True if PyTorch sees a GPU."""
    return torch.cuda.is_available()


class BlockPeak:
    """The peak of a block of code above its beginning, in bytes.

    On CUDA, the GPU whose memory grew most gives the peak. On the CPU, memory allocated before the
    block is not seen, so freeing it makes no room.
    """

    def __init__(self, device: str, metric: str) -> None:
        self._cuda, self._metric = device == "cuda", metric
        self._patches = Patches()
        self._start: list[int] = []

    def begin(self) -> None:
        """Start to record, and read what is allocated before the block."""
        self._counters = Counters(history=False) if self._cuda else CpuCounters()
        if self._cuda:
            torch.cuda.init()
            if self._metric == "reserved":
                torch.cuda.empty_cache()
            self._counters.install(self._patches)
            key = f"{self._metric}_bytes.all.current"
            for notes in self._counters.notes:
                torch.cuda.synchronize(notes.device)
                self._start.append(torch.cuda.memory_stats(notes.device).get(key, 0))
        self._counters.enter(Phase.STEP, 0)

    def end(self) -> int:
        """Stop to record and return the block's peak, in bytes."""
        for notes in self._counters.notes if self._cuda else ():
            torch.cuda.synchronize(notes.device)
        self._counters.end()
        self._patches.undo()
        first = [notes.intervals[0] for notes in self._counters.notes]
        if not self._cuda:
            return first[0].peaks.requested
        peaks = [int(getattr(one.peaks, self._metric)) for one in first]
        return max(peak - start for peak, start in zip(peaks, self._start, strict=True))
