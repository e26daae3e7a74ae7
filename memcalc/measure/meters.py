"""Reads what a phase cost, on CUDA from PyTorch's allocator, on the CPU from its profiler."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

from memcalc.allocator.counter import Levels
from memcalc.errors import MeasureError
from memcalc.records.measurement import PhaseReading
from memcalc.records.trace import Phase


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
        levels: dict[str, int] = {}
        for rung in Levels.__struct_fields__:
            levels[rung] = stats.get(f"{rung}_bytes.all.peak", 0)
            levels[f"{rung}_after"] = stats.get(f"{rung}_bytes.all.current", 0)
        return PhaseReading(step=step, phase=phase, **levels)

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
        self._profiler = profiler()

    def end(self, phase: Phase, step: int) -> PhaseReading:
        """Add up the events since ``begin``."""
        assert self._profiler is not None
        self._profiler.__exit__(None, None, None)
        ended, self._profiler = self._profiler, None
        level = peak = self._level
        for _, change in memory_events(ended):
            level += change
            peak = max(peak, level)
        self._level = level
        return requested_only(step, phase, peak, level)

    def close(self) -> None:
        """Stop watching, also in the middle of a phase."""
        if self._profiler is not None:
            self._profiler.__exit__(None, None, None)
            self._profiler = None


def requested_only(step: int, phase: Phase, peak: int, level: int) -> PhaseReading:
    """The reading of a phase on the CPU, which has no allocator to ask; bytes."""
    return PhaseReading(
        step=step,
        phase=phase,
        requested=peak,
        requested_after=level,
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
    # Since 2.13 the profiler writes two lines for each time it is used.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    started = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    )
    try:
        started.__enter__()
    except RuntimeError as error:
        raise MeasureError(
            f"On the CPU, memory is read through PyTorch's profiler, which is taken: {error}"
        ) from None
    return started


def memory_events(profiler: torch.profiler.profile) -> list[tuple[int, int]]:
    """When (nanoseconds) and how many bytes: every allocation (positive) and free (negative)."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    stack: list[Any] = list(profiler.profiler.kineto_results.experimental_event_tree())
    found: list[tuple[int, int]] = []
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    return sorted(found, key=lambda item: item[0])


def meter_for(device: str, snapshot: str | None) -> Meter:
    """The meter of a device."""
    return CudaMeter(snapshot) if device == "cuda" else CpuMeter()
