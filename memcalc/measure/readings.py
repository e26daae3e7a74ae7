"""Reads the memory of a program on a real device, phase by phase.

On CUDA PyTorch's allocator counts it. On the CPU one profiler runs from the first phase to the
last, and its events are told apart by time afterwards: a profiler that is stopped inside somebody's
``record_function``, as ``Optimizer.step`` is one, leaves memory corrupted (seen with PyTorch 2.13).
"""

import ctypes
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import torch

from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters, CpuCounters
from memcalc.engine.notes import Interval
from memcalc.engine.patches import Patches
from memcalc.errors import MeasureError
from memcalc.records.levels import Levels
from memcalc.records.measurement import PhaseReading
from memcalc.records.trace import Phase


def has_cuda() -> bool:
    """Return True if PyTorch sees a GPU."""
    return torch.cuda.is_available()


class GpuCounters(Counters):
    """The counters of PyTorch's allocator, read when the device has finished what it was given."""

    def __init__(self, told: Callable[[PhaseReading], None] = lambda one: None) -> None:
        """Begin; ``told`` hears of each phase as another begins."""
        super().__init__(history=False)
        self._told = told

    def enter(self, phase: Phase, step: int, line: str = "") -> None:
        """Another phase begins, or another step."""
        super().enter(phase, step, line)
        for one in self.intervals[-2:-1]:
            self._told(self._reading(one))

    def leave(self) -> None:
        """The phase that runs, if any, has ended: read its peaks."""
        if self.notes:
            torch.cuda.synchronize()
        super().leave()

    @property
    def intervals(self) -> list[Interval]:
        """Phases so far, on the GPU in use; what is removed is not read."""
        return self.notes[torch.cuda.current_device()].intervals if self.notes else []

    def end(self) -> None:
        """The program has ended: read its last phase."""
        self.leave()

    def readings(self) -> Iterator[PhaseReading]:
        """Yield the peaks of each phase that was read."""
        return (self._reading(one) for one in self.intervals if one.end >= 0)

    def _reading(self, one: Interval) -> PhaseReading:
        peaks = {rung: getattr(one, rung) for rung in Levels.__struct_fields__}
        return PhaseReading(step=one.step, phase=one.phase, **peaks)


class HostCounters(CpuCounters):
    """The CPU allocator's events; what was there before they are followed does not count.

    Raises:
        MeasureError: somebody else's profiler runs already; PyTorch has room for one.
    """

    def __init__(self, told: Callable[[PhaseReading], None] = lambda one: None) -> None:
        """Begin; ``told`` hears of each phase as another begins, without its peak."""
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            # A second one would end the first without a word (seen with PyTorch 2.13).
            raise MeasureError(
                "On the CPU, memory is read through PyTorch's profiler, and one is running already."
            )
        self._told, self._ended = told, False
        # A thread of gloo frees what it used last, where no profiler sees it.
        self._everywhere = torch.distributed.is_available() and (
            torch.distributed.is_initialized() and _count_everywhere()
        )
        try:
            super().__init__(with_dtypes=False)
        except RuntimeError as error:
            raise MeasureError(
                f"On the CPU, memory is read through PyTorch's profiler, which is taken: {error}"
            ) from None

    def enter(self, phase: Phase, step: int, line: str = "") -> None:
        """Another phase begins, or another step."""
        super().enter(phase, step, line)
        for one in self.intervals[-2:-1]:
            self._told(_on_cpu(one, None))

    @property
    def intervals(self) -> list[Interval]:
        """Phases so far; what is removed is not read."""
        return self.notes[0].intervals

    def end(self) -> None:
        """The program has ended: tell events apart."""
        if self._ended:
            return
        self._ended = True
        super().end()
        events = list(self._events())
        times = [when for when, _ in events]
        levels = [0, *accumulate(change for _, change in events)]
        self.notes[0].move(lambda moment: bisect_left(times, moment))
        for one in self.intervals:
            one.requested = max(levels[one.begin : one.end + 1])

    def readings(self) -> Iterator[PhaseReading]:
        """Yield the peaks of each phase, once the program has ended."""
        return (_on_cpu(one, one.requested) for one in self.intervals if one.end >= 0)

    def _events(self) -> Iterator[tuple[int, int]]:
        """Yield when (nanoseconds) and how many bytes: allocations (positive), frees (negative).

        Gloo copies what it gathers and reduces, in threads of its own. That is no part of the
        training, and other backends have none of it. A thread has the profiler only while a
        collective runs in it (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), so that a tensor
        whose last user is gloo is freed unseen: then the allocator's own total, which is counted in
        all threads, is less than what is thought to live.
        """
        level = 0
        sizes: dict[int, int] = {}
        for one in internals.cpu_allocations(self.notes[0].profiler):
            if one.bytes < 0:
                # What is older than the run was never counted.
                change = -sizes.pop(one.address, 0)
            else:
                change = sizes[one.address] = 0 if one.in_collective else one.bytes
            if self._everywhere and one.on_main_thread:
                change = min(level + change, one.total) - level
            if change:
                level += change
                yield one.when, change


def _on_cpu(one: Interval, peak: int | None) -> PhaseReading:
    unknown = dict.fromkeys(("allocated", "active", "reserved"))
    return PhaseReading(step=one.step, phase=one.phase, requested=peak, **unknown)


def _count_everywhere() -> bool:
    """Have the CPU allocator count in all threads; False: this PyTorch does not know how.

    Source: c10/core/CPUAllocator.cpp, ``ProfiledCPUMemoryReporter`` (2.11 and 2.13): a block is
    counted where a profiler runs in the thread, or where this flag is set.
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


class Watch:
    """The peak of a block of code above its beginning, in bytes.

    On CUDA of the GPU that rose most. On the CPU memory that was there before is not seen, so that
    freeing it makes no room.
    """

    def __init__(self, device: str, metric: str) -> None:
        self._cuda, self._metric = device == "cuda", metric
        self._patches = Patches()
        self._start: list[int] = []

    def begin(self) -> None:
        """From here on."""
        self._counters: Counters = Counters(history=False) if self._cuda else HostCounters()
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
        """Return the peak."""
        if not self._cuda:
            self._counters.end()
            return int(self._counters.notes[0].intervals[0].requested)
        for notes in self._counters.notes:
            torch.cuda.synchronize(notes.device)
        self._counters.leave()
        self._patches.undo()
        peaks = (getattr(notes.intervals[0], self._metric) for notes in self._counters.notes)
        return max(int(peak) - start for peak, start in zip(peaks, self._start, strict=True))
