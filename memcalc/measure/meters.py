"""Reads the memory of a phase: on CUDA from PyTorch's allocator, on the CPU from its profiler."""

import ctypes
from pathlib import Path

import torch

from memcalc.engine import torch_internals as internals
from memcalc.errors import MeasureError
from memcalc.records.levels import Levels
from memcalc.records.measurement import PhaseReading
from memcalc.records.trace import Phase


class CudaMeter:
    """``torch.cuda.memory_stats``: exact, counted by the allocator itself."""

    def __init__(self, snapshot: str | None) -> None:
        self._snapshot = snapshot
        if snapshot is not None:
            torch.cuda.memory._record_memory_history(max_entries=10**7, stacks="python")

    def begin(self) -> None:
        """Forget the peaks so far."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def end(self, phase: Phase, step: int) -> PhaseReading:
        """Read the peaks since ``begin``."""
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        peaks = {rung: stats.get(f"{rung}_bytes.all.peak", 0) for rung in Levels.__struct_fields__}
        return PhaseReading(step=step, phase=phase, **peaks)

    def close(self) -> None:
        """Write the snapshot, if one is wanted."""
        if self._snapshot is not None:
            torch.cuda.memory._dump_snapshot(self._snapshot)
            torch.cuda.memory._record_memory_history(enabled=None)


class CpuMeter:
    """The CPU allocator's own events, as PyTorch's profiler reports them."""

    def __init__(self) -> None:
        self._events = CpuEvents()
        self._profiler: torch.profiler.profile | None = None

    def begin(self) -> None:
        """Watch from here on."""
        self._profiler = profiler()

    def end(self, phase: Phase, step: int) -> PhaseReading:
        """Add up the events since ``begin``."""
        assert self._profiler is not None
        self._profiler.__exit__(None, None, None)
        ended, self._profiler = self._profiler, None
        level = peak = self._events.level
        for _, change in self._events.of(ended):
            level += change
            peak = max(peak, level)
        return requested_only(step, phase, peak)

    def close(self) -> None:
        """Stop watching, also in the middle of a phase."""
        if self._profiler is not None:
            self._profiler.__exit__(None, None, None)
            self._profiler = None


def requested_only(step: int, phase: Phase, peak: int) -> PhaseReading:
    """The reading of a phase on the CPU, which has no allocator to ask; bytes."""
    return PhaseReading(
        step=step,
        phase=phase,
        requested=peak,
        allocated=None,
        active=None,
        reserved=None,
    )


def profiler() -> torch.profiler.profile:
    """Start a profiler that sees every allocation on the CPU.

    Raises:
        MeasureError: somebody else's profiler runs already; PyTorch has room for one.
    """
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        # A second one would end the first without a word (seen with PyTorch 2.13).
        raise MeasureError(
            "On the CPU, memory is read through PyTorch's profiler, and one is running already."
        )
    started: torch.profiler.profile = internals.memory_profiler()
    try:
        started.__enter__()
    except RuntimeError as error:
        raise MeasureError(
            f"On the CPU, memory is read through PyTorch's profiler, which is taken: {error}"
        ) from None
    return started


class CpuEvents:
    """Allocations on the CPU over several profilers, without what a collective takes for itself.

    Gloo copies what it gathers and reduces, in threads of its own. That is no part of the training,
    and other backends have none of it. A thread has the profiler only while a collective runs in it
    (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), so that a tensor whose last user is gloo is
    freed where no profiler sees it: then the allocator's own total, which is counted in all threads
    where ``counted_everywhere`` says so, is less than what is thought to live.
    """

    def __init__(self) -> None:
        self.level = 0
        self._theirs: set[int] = set()
        self._everywhere = torch.distributed.is_available() and (
            torch.distributed.is_initialized() and counted_everywhere()
        )

    def of(self, profiler: torch.profiler.profile) -> list[tuple[int, int]]:
        """When (nanoseconds) and how many bytes: allocations (positive) and frees (negative)."""
        found: list[tuple[int, int]] = []
        for one in internals.cpu_allocations(profiler):
            change = 0 if self._is_theirs(one) else one.bytes
            if self._everywhere and one.on_main_thread:
                change = min(self.level + change, one.total) - self.level
            if change:
                found.append((one.when, change))
                self.level += change
        return found

    def _is_theirs(self, one: internals.Allocation) -> bool:
        if one.bytes < 0:
            theirs = one.address in self._theirs
            self._theirs.discard(one.address)
            return theirs
        if one.in_collective:
            self._theirs.add(one.address)
        else:
            self._theirs.discard(one.address)
        return one.in_collective


def counted_everywhere() -> bool:
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
