"""Reads what a phase cost, on CUDA from PyTorch's allocator, on the CPU from its profiler."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from memcalc.records import Phase, PhaseReading


class Meter(Protocol):
    """Begins before a phase, ends after it."""

    def begin(self) -> None:
        """Forget the peaks so far."""
        ...

    def end(self, phase: Phase, step: int) -> PhaseReading:
        """Read the peaks since ``begin``."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class CudaMeter:
    """``torch.cuda.memory_stats``: exact, counted by the allocator itself."""

    def __init__(self, snapshot: str | None) -> None:
        torch.cuda.init()
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
        return PhaseReading(
            step=step,
            phase=phase,
            requested=stats.get("requested_bytes.all.peak", 0),
            allocated=stats.get("allocated_bytes.all.peak", 0),
            active=stats.get("active_bytes.all.peak", 0),
            reserved=stats.get("reserved_bytes.all.peak", 0),
            requested_after=stats.get("requested_bytes.all.current", 0),
        )

    def close(self) -> None:
        """Write the snapshot, if one is wanted."""
        if self._snapshot is not None:
            torch.cuda.memory._dump_snapshot(self._snapshot)
            torch.cuda.memory._record_memory_history(enabled=None)


class CpuMeter:
    """The CPU allocator's own events, as PyTorch's profiler reports them."""

    def __init__(self) -> None:
        self._level = 0
        self._profiler: torch.profiler.profile | None = None

    def begin(self) -> None:
        """Watch from here on."""
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._profiler.__enter__()

    def end(self, phase: Phase, step: int) -> PhaseReading:
        """Add up the events since ``begin``."""
        assert self._profiler is not None
        self._profiler.__exit__(None, None, None)
        level = peak = self._level
        for event in _memory_events(self._profiler):
            level += event
            peak = max(peak, level)
        self._level = level
        return PhaseReading(
            step=step,
            phase=phase,
            requested=peak,
            allocated=peak,
            active=peak,
            reserved=peak,
            requested_after=level,
        )

    def close(self) -> None:
        """Nothing is left open."""


def _memory_events(profiler: torch.profiler.profile) -> list[int]:
    """Bytes of every allocation (positive) and free (negative), in order of time."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    stack: list[Any] = list(profiler.profiler.kineto_results.experimental_event_tree())
    found: list[tuple[int, int]] = []
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    return [size for _, size in sorted(found, key=lambda item: item[0])]


def meter_for(device: str, snapshot: str | None) -> Meter:
    """The meter of a device."""
    return CudaMeter(snapshot) if device == "cuda" else CpuMeter()
