"""Reads PyTorch's memory counters by phase, hidden from the program's own reads.

PyTorch's peaks are reset at the start of each phase, so that they are the phase's peaks. A program
that reads a peak gets the highest since its own last reset.
"""

from collections.abc import Callable
from typing import Any

import torch

from memcalc.engine import nccl_traffic
from memcalc.engine import torch_internals as internals
from memcalc.engine.notes import Gap, Interval, Notebook, Notes
from memcalc.engine.patches import Around, Patches
from memcalc.records.levels import highest
from memcalc.records.trace import Component, Phase, PhaseReading

_C: Any = torch._C
_POOLS = ("all", "small_pool", "large_pool")
History = list[dict[str, Any]]
"""Allocations and frees in order, in the form of ``torch.cuda.memory._snapshot``."""


class Counters(Notebook):
    """The memory counters of all GPUs of this process, by phase, from CUDA's start on."""

    def __init__(
        self, *, history: bool = True, on_phase: Callable[[PhaseReading], None] | None = None
    ) -> None:
        """Make counters; CUDA need not have started.

        Args:
            history: keep the allocator's history. Without it only peaks are read, each after the
                device has finished its work.
            on_phase: called with each phase when the next one begins.
        """
        self.notes = []  # Until CUDA starts.
        self._history, self._on_phase = history, on_phase
        self._waiting: tuple[Phase, int, str] | None = None
        self._unread: list[dict[tuple[str, str], int]] = []
        """For each GPU, the peak of each counter since the program's own last reset."""
        self._levels: dict[int, Any] = {}
        """By GPU, its counters at the start of the phase, if they were read then."""
        self._ended = False

    def install(self, patches: Patches, *, with_lines: bool = False) -> None:
        """Start to count once CUDA starts; patch the functions that read and reset peaks.

        ``with_lines``: keep the line of code of each allocation, which takes time.
        """
        self._stats, self._reset = _C._cuda_memoryStats, _C._cuda_resetPeakMemoryStats
        patches.set(_C, "_cuda_memoryStats", self._read_stats)
        patches.set(_C, "_cuda_resetPeakMemoryStats", self._reset_stats)
        torch.cuda._lazy_call(lambda: self._start(with_lines))
        if not self._history:
            return
        patches.wrap(_C, "_cuda_clearCublasWorkspaces", self._label_freed(Component.WORKSPACES))
        # Autocast calls it as its outermost context ends (torch/amp/autocast_mode.py).
        patches.wrap(torch, "clear_autocast_cache", self._label_freed(Component.AUTOCAST_COPIES))
        memory: Any = torch.cuda.memory
        patches.set(memory, "_record_memory_history", lambda *_, **__: None)

    def _start(self, with_lines: bool) -> None:
        """Start the history and the notes of each GPU, once CUDA has started."""
        if self._history:
            internals.start_history(with_lines=with_lines)
        self.notes = [Notes(device) for device in range(_C._cuda_getDeviceCount())]
        self._unread = [{} for _ in self.notes]
        for notes in self.notes:
            notes.zero = internals.events_so_far(notes.device)
        if self._waiting is not None:
            self._open_interval(*self._waiting)

    def without_lines(self) -> None:
        """Stop recording the line of code of each allocation."""
        if self.notes:
            internals.stop_lines()

    # ---- phases

    def enter(self, phase: Phase, step: int, line: str = "") -> None:
        """Begin a phase of a step, and end the one before; ignored once the program has ended."""
        if self._ended:
            return
        self._waiting = phase, step, line
        self.leave()
        self._open_interval(phase, step, line)
        if self._on_phase is not None:
            for one in self.intervals[-2:-1]:
                self._on_phase(self._current.reading(one))

    @property
    def _current(self) -> Notes:
        return self.notes[torch.cuda.current_device()]

    @property
    def intervals(self) -> list[Interval]:
        """Return the list of phases so far on the current GPU; removed ones are not reported."""
        return self._current.intervals if self.notes else []

    def readings(self) -> tuple[PhaseReading, ...]:
        """Return the peaks of each phase that has ended, on the current GPU."""
        return self._current.readings() if self.notes else ()

    def rename(self, phase: Phase, step: int) -> None:
        """Change the phase of the running interval; join it with an equal one before it."""
        if self._waiting is not None:
            self._waiting = phase, step, self._waiting[2]
        for notes in self.notes:
            *_, last = notes.intervals
            last.phase, last.step = phase, step
            before = notes.intervals[-2] if len(notes.intervals) > 1 else last
            if before is not last and (before.phase, before.step) == (phase, step):
                notes.intervals.pop()
                before.end = -1
            # What ends a gap may run on another stream than what began it.
            notes.intervals[-1].stream = self._current_stream(notes.device)

    def forget(self) -> None:
        """Drop the running interval, so that its peaks are not reported."""
        for notes in self.notes:
            notes.intervals.pop()

    def interval(self) -> int:
        """Return the index of the running interval."""
        return len(self.notes[0].intervals) - 1 if self.notes else 0

    def peak_interval(self, *notes: Notes) -> int:
        """Return the index of the interval with the highest allocated peak on these GPUs."""
        numbered = (pair for one in notes for pair in enumerate(one.intervals))
        return max(numbered, key=lambda pair: pair[1].peaks.allocated, default=(0, None))[0]

    def _open_interval(self, phase: Phase, step: int, line: str) -> None:
        for number, notes in enumerate(self.notes):
            begin = notes.now()
            if not notes.intervals or begin != notes.intervals[-1].end:
                begin = self._reset_peaks(number, notes)
            opened = Interval(phase=phase, step=step, begin=begin, line=line)
            opened.stream = self._current_stream(notes.device)
            notes.intervals.append(opened)
            if self._history:
                notes.marks.append((begin, ""))

    def _current_stream(self, device: int) -> int:
        """Return the CUDA stream of this thread on a GPU, as the allocator's history names it."""
        return torch.cuda.current_stream(device).cuda_stream

    def _reset_peaks(self, number: int, notes: Notes) -> int:
        """Reset peak counters; return the event count at the reset.

        Threads of process groups may free blocks between two calls, so it retries until none did.
        """
        self._levels.pop(number, None)
        while True:
            before = notes.now()
            self._reset(notes.device)
            if notes.now() == before:
                return before

    def leave(self) -> None:
        """End the phase that runs, if any, and read its peaks."""
        if self.notes and not self._history:
            torch.cuda.synchronize()
        given = nccl_traffic.read_counts()
        for number, notes in enumerate(self.notes):
            interval = notes.intervals[-1] if notes.intervals else None
            if interval is not None and interval.end < 0:
                interval.end, interval.given = self._read_peaks(number, notes, interval), given

    def _read_peaks(self, number: int, notes: Notes, interval: Interval) -> int:
        """Read the peaks of a phase that ends; return the event count."""
        level = self._levels.pop(number, None)
        if level is not None and notes.now() == interval.begin:
            # Nothing was allocated or freed: the peaks are the levels at the start.
            self._raise_peaks(interval, level, "current")
            return interval.begin
        self._levels[number] = stats = self._stats(notes.device)
        self._reset(notes.device)
        self._raise_peaks(interval, stats, "peak")
        unread = self._unread[number]
        for name, pools in stats.items():
            for pool in _POOLS if isinstance(pools, dict) and "all" in pools else ():
                unread[name, pool] = max(unread.get((name, pool), 0), pools[pool]["peak"])
        return internals.events_in(stats) - notes.zero

    def _raise_peaks(self, interval: Interval, stats: Any, counted: str) -> None:
        """Raise an interval's peaks to a GPU's counters; ``counted``: current or peak."""
        interval.peaks = highest(interval.peaks, internals.levels_in(stats, counted))

    # ---- the history

    def pause(self) -> None:
        """Stop the history for a while, because it would become too long."""
        begins = self.moments()
        snapshot = internals.stop_history()
        for notes, begin in zip(self.notes, begins, strict=True):
            notes.gap = Gap(begin=begin, entries=snapshot["device_traces"][notes.device])

    def resume(self) -> None:
        """Resume the history after ``pause``."""
        for notes in self.notes:
            if notes.gap is not None:
                notes.gap.end = notes.now()
                notes.gap.living = internals.resume_history(notes.device)

    def end(self) -> None:
        """End the last phase, and free cuBLAS's workspaces so that the history labels them."""
        self.leave()
        self._ended = True
        for notes in self.notes if self._history else ():
            with torch.cuda.device(notes.device):
                if notes.intervals[-1].end:
                    _C._cuda_clearCublasWorkspaces()

    def histories(self) -> list[tuple[Notes, History]]:
        """Return the notes of each GPU, and the history that its allocator kept."""
        if not self.notes:
            return []
        snapshot = internals.stop_history()
        for notes in self.notes:
            notes.private = internals.private_pools(snapshot, notes.device)
        return [(notes, snapshot["device_traces"][notes.device]) for notes in self.notes]

    # ---- the program's own reads

    def _read_stats(self, device: int) -> Any:
        """Return a GPU's counters with the peaks since the program's own last reset."""
        stats = self._stats(device)
        if not self.notes or not stats:
            return stats
        for (name, pool), peak in self._unread[device].items():
            counted = stats[name][pool]
            counted["peak"] = max(counted["peak"], peak)
        return stats

    def _reset_stats(self, device: int) -> None:
        """Reset the peaks for the program, and keep the running phase's peaks."""
        if self.notes:
            interval = self.notes[device].intervals[-1]
            if interval.end < 0:
                self._raise_peaks(interval, self._stats(device), "peak")
            self._unread[device].clear()
        self._reset(device)

    def _label_freed(self, component: Component) -> Around:
        """Return a wrapper that labels the blocks that a function of PyTorch frees."""

        def around(original: Any) -> None:
            begins = self.moments()
            original()
            for notes, begin in zip(self.notes, begins, strict=True):
                if (end := notes.now()) != begin:
                    notes.released.append((component, begin, end))

        return around
