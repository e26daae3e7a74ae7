"""PyTorch's memory counters by phase, without changing what the program reads from them.

A phase's peak is read by resetting the peaks as it begins. A program that asks for a peak finds
the highest since it last reset it itself.
"""

from typing import Any

import torch

from memcalc.engine import nccl_traffic
from memcalc.engine import torch_internals as internals
from memcalc.engine.notes import Interval, Notebook, Notes
from memcalc.engine.patches import Patches
from memcalc.records.prediction import ALLOCATOR_RUNGS
from memcalc.records.trace import Phase

_C: Any = torch._C
_POOLS = ("all", "small_pool", "large_pool")


class Counters(Notebook):
    """The allocators of all GPUs of this process, from the moment that CUDA begins."""

    def __init__(self) -> None:
        self.notes = []  # Until CUDA begins.
        self._waiting: tuple[Phase, int, str] = (Phase.LOAD, 0, "")
        self._unread: list[dict[tuple[str, str], int]] = []
        """Of each GPU: the highest of each counter since the program last reset them."""
        self._levels: dict[int, Any] = {}
        """Of a GPU: its counters as the phase began, where they were read then."""
        self._stats, self._reset = _C._cuda_memoryStats, _C._cuda_resetPeakMemoryStats

    def install(self, patches: Patches) -> None:
        """Begin with CUDA, and answer the program's own questions."""
        patches.set(_C, "_cuda_memoryStats", self._asked)
        patches.set(_C, "_cuda_resetPeakMemoryStats", self._forgotten)
        patches.wrap(_C, "_cuda_clearCublasWorkspaces", self._cleared)
        memory: Any = torch.cuda.memory
        patches.set(memory, "_record_memory_history", lambda *_, **__: None)
        torch.cuda._lazy_call(self._begin)

    def _begin(self) -> None:
        internals.start_history(with_lines=True)
        self.notes = [Notes(device) for device in range(_C._cuda_getDeviceCount())]
        self._unread = [{} for _ in self.notes]
        for notes in self.notes:
            notes.zero = internals.events_so_far(notes.device)
        self._open(*self._waiting)

    def without_lines(self) -> None:
        """From now on the lines that ask for blocks are not kept, which takes time."""
        if self.notes:
            internals.go_on_without_lines()

    def enter(self, phase: Phase, step: int, line: str = "") -> None:
        """Another phase begins, or another step."""
        self._waiting = phase, step, line
        if self.notes:
            self._close()
            self._open(phase, step, line)

    def interval(self) -> int:
        """The number of the present interval, on every GPU."""
        return len(self.notes[0].intervals) - 1 if self.notes else 0

    def peak(self, *notes: Notes) -> int:
        """The number of the interval in which most of one of these GPUs was allocated."""
        numbered = (pair for one in notes for pair in enumerate(one.intervals))
        return max(numbered, key=lambda pair: pair[1].allocated, default=(0, None))[0]

    def _open(self, phase: Phase, step: int, line: str) -> None:
        for notes in self.notes:
            begin = notes.now()
            notes.intervals.append(Interval(phase=phase, step=step, begin=begin, line=line))
            notes.marks.append((begin, ""))

    def _close(self) -> None:
        given = nccl_traffic.so_far()
        for number, notes in enumerate(self.notes):
            interval = notes.intervals[-1]
            level = self._levels.pop(number, None)
            if level is not None and notes.now() == interval.begin:
                # No block was born or died: the peaks are what there was as it began.
                self._raise(interval, level, "current")
            else:
                self._levels[number] = stats = self._stats(notes.device)
                self._reset(notes.device)
                self._raise(interval, stats, "peak")
                _keep_highest(self._unread[number], stats)
            interval.end, interval.given = notes.now(), given

    def _raise(self, interval: Interval, stats: Any, counted: str) -> None:
        for rung in ALLOCATOR_RUNGS:
            found = stats[f"{rung}_bytes"]["all"][counted]
            setattr(interval, rung, max(getattr(interval, rung), found))

    def end(self) -> None:
        """The program has ended: read its last phase, and free what cuBLAS holds."""
        if not self.notes:
            return
        self._close()
        for notes in self.notes:
            with torch.cuda.device(notes.device):
                if notes.intervals[-1].end:
                    internals.free_cublas_workspaces()

    def _asked(self, device: int) -> Any:
        stats = self._stats(device)
        if not self.notes or not stats:
            return stats
        for (name, pool), peak in self._unread[device].items():
            counted = stats[name][pool]
            counted["peak"] = max(counted["peak"], peak)
        return stats

    def _forgotten(self, device: int) -> None:
        """The program resets its peaks; those of the phase so far are kept."""
        if self.notes:
            self._raise(self.notes[device].intervals[-1], self._stats(device), "peak")
            self._unread[device].clear()
        self._reset(device)

    def _cleared(self, original: Any) -> None:
        """What cuBLAS lets go of are its workspaces, also where the program asks for it."""
        begins = self.moments()
        original()
        for notes, begin in zip(self.notes, begins, strict=True):
            notes.cublas.append((begin, notes.now()))


def _keep_highest(known: dict[tuple[str, str], int], stats: dict[str, Any]) -> None:
    for name, pools in stats.items():
        if isinstance(pools, dict) and "all" in pools:
            for pool in _POOLS:
                peak = pools[pool]["peak"]
                if peak > known.get((name, pool), -1):
                    known[name, pool] = peak
