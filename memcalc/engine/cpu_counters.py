"""Computes the peaks of CPU memory by phase from the events of PyTorch's profiler."""

import ctypes
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import torch
from msgspec.structs import replace

from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters, History
from memcalc.engine.notes import Interval, Notes
from memcalc.errors import MeasureError
from memcalc.records.trace import PhaseReading


class CpuCounters(Counters):
    """Peaks of CPU memory by phase, computed from the events of PyTorch's profiler.

    A single profiler runs from the first phase to the last, and its events are assigned to phases
    by time afterwards: stopping a profiler inside a ``record_function``, such as
    ``Optimizer.step``, corrupts memory (seen with PyTorch 2.13). Memory allocated before the
    profiler started does not count.
    """

    KIND = "cpu"

    def __init__(
        self, *, with_dtypes: bool = False, on_phase: Callable[[PhaseReading], None] | None = None
    ) -> None:
        """Start the profiler.

        Args:
            with_dtypes: record dtypes. The profiler then keeps weak references to tensors, with
                which models cannot be sharded.
            on_phase: called with each phase when the next one begins, without its peak.

        Raises:
            MeasureError: another profiler runs already; PyTorch allows only one.
        """
        super().__init__(on_phase=on_phase)
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            # A second profiler silently ends the first (seen with PyTorch 2.13).
            raise MeasureError(
                "On the CPU, memory is read through PyTorch's profiler, and one is running already."
            )
        # A thread of gloo frees its last tensors unseen by the profiler.
        self._everywhere = _uses_gloo() and _count_everywhere()
        notes = _CpuNotes()
        notes.profiler = internals.memory_profiler(with_dtypes=with_dtypes)
        try:
            notes.profiler.__enter__()
        except RuntimeError as error:
            raise MeasureError(
                f"On the CPU, memory is read through PyTorch's profiler, which is taken: {error}"
            ) from None
        notes.profiled = 0, 1  # To the end.
        self.notes = [notes]
        self._changes: list[tuple[int, int, int]] = []

    @property
    def _current(self) -> Notes:
        return self.notes[0]

    def _current_stream(self, device: int) -> int:
        """Return 0: there are no streams."""
        return 0

    def _reset_peaks(self, number: int, notes: Notes) -> int:
        """Return the present time: the profiler has no peaks to reset."""
        return notes.now()

    def _read_peaks(self, number: int, notes: Notes, interval: Interval) -> int:
        """Return the present time; ``end`` computes the peaks of all phases."""
        return notes.now()

    def end(self) -> None:
        """Stop the profiler and compute the peaks of all phases from its events."""
        if self._ended:
            return
        self.leave()
        self._ended = True
        [notes] = self.notes
        notes.profiler.__exit__(None, None, None)
        self._changes = list(self._iterate_changes())
        times = [when for when, _, _ in self._changes]
        levels = [0, *accumulate(change for _, change, _ in self._changes)]
        notes.move(lambda moment: bisect_left(times, moment))
        notes.profiled = 0, len(times) + 1
        notes.counted = ("requested",)
        for interval in notes.intervals:
            highest = max(levels[interval.begin : interval.end + 1])
            interval.peaks = replace(interval.peaks, requested=highest)

    def histories(self) -> list[tuple[Notes, History]]:
        """Return the CPU's notes with its allocations and frees as entries of a history."""
        entries: History = []
        for _, change, address in self._changes:
            action = "alloc" if change > 0 else "free_requested"
            entries.append({"action": action, "addr": address, "size": abs(change), "stream": 0})
            if change < 0:
                entries.append({"action": "free_completed", "addr": address})
        return [(self.notes[0], entries)]

    def _iterate_changes(self) -> Iterator[tuple[int, int, int]]:
        """Yield the time of each allocation and free, the bytes it adds or removes, its address.

        Gloo's threads copy tensors that they gather and reduce. Other backends make no such copies,
        so they are not counted. The profiler sees a thread only while a collective runs in it
        (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), so frees of tensors last used by gloo
        are missing. The allocator's own total over all threads then shows less, and is used.
        """
        level = 0
        sizes: dict[int, int] = {}
        for one in internals.cpu_allocations(self.notes[0].profiler):
            if one.bytes < 0:
                # Blocks older than the run were never counted.
                change = -sizes.pop(one.address, 0)
            else:
                change = sizes[one.address] = 0 if one.in_collective else one.bytes
            if self._everywhere and one.on_main_thread:
                change = min(level + change, one.total) - level
            if change:
                level += change
                yield one.when, change, one.address


def _uses_gloo() -> bool:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return "gloo" in distributed.get_backend()


def _count_everywhere() -> bool:
    """Make the CPU allocator count in all threads; return False if this PyTorch cannot.

    Source: c10/core/CPUAllocator.cpp, ``ProfiledCPUMemoryReporter`` (2.11 and 2.13): a block is
    counted if a profiler runs in the thread, or if this flag is set.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        flag = ctypes.c_bool.in_dll(
            ctypes.CDLL(str(library)), "FLAGS_caffe2_report_cpu_memory_usage"
        )
    except (OSError, ValueError):
        return False
    flag.value = True
    return True


class _CpuNotes(Notes):
    """Notes on CPU memory; a moment is a time until the run has ended, then an event count."""

    KIND = "cpu"
    counted = ()

    def __init__(self) -> None:
        super().__init__(0)

    def now(self) -> int:
        """Return the present time, in nanoseconds."""
        return time.time_ns()
