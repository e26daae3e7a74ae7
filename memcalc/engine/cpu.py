"""A run on the CPU, which has no caching allocator: PyTorch's profiler reports its blocks."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Any

from memcalc.engine import torch_internals as internals
from memcalc.engine.notes import Interval
from memcalc.engine.recorder import Recorder


class CpuRecorder(Recorder):
    """Follows a program on the CPU; a moment is a time until the run has ended."""

    KIND = "cpu"

    def start(self) -> None:
        """Have every block and every operator noted."""
        # A profiler of dtypes keeps weak references, and a model with those cannot be sharded.
        self.profiler = internals.memory_profiler(with_dtypes=self._detailed)
        self.profiler.__enter__()

    def now(self) -> int:
        """The present moment, in nanoseconds."""
        return time.time_ns()

    def begin_phase(self) -> int:
        """There are no counters to reset."""
        return self.now()

    def read_peaks(self, interval: Interval) -> None:
        """There are no counters to read; peaks follow from the history."""
        interval.end = self.now()

    def profile(self) -> None:
        """It runs from the start on."""

    def stop_profiling(self) -> None:
        """It runs to the end."""

    def end(self) -> None:
        """Nothing is followed any more."""
        self._unfollow()
        self.profiler.__exit__(None, None, None)

    def history(self) -> list[dict[str, Any]]:
        """Births and deaths as the allocator's history has them; moments become numbers of them."""
        changes = internals.cpu_blocks(self.profiler)
        entries: list[dict[str, Any]] = []
        times: list[int] = []
        alive: dict[int, int] = {}
        for moment, address, size in changes:
            if size > 0:
                alive[address] = size
            elif alive.pop(address, None) is None:
                # It is older than the run.
                continue
            action = "alloc" if size > 0 else "free_requested"
            entries.append({"action": action, "addr": address, "size": abs(size), "stream": 0})
            if size < 0:
                entries.append({"action": "free_completed", "addr": address})
            times.append(moment)
        self._settle(times)
        self._fill_peaks(entries)
        return entries

    def _settle(self, times: list[int]) -> None:
        """Let moments be numbers of events, as they are on a GPU."""

        def number(moment: int) -> int:
            return bisect_left(times, moment)

        for interval in self.intervals:
            interval.begin, interval.end = number(interval.begin), number(interval.end)
        self.marks = [(number(moment), path) for moment, path in self.marks]
        self.names = [(number(moment), what, which) for moment, what, which in self.names]
        self.owners = [(number(moment), owners) for moment, owners in self.owners]
        self.born_since = [
            (number(moment), what, number(since)) for moment, what, since in self.born_since
        ]
        self.profiled = 0, len(times) + 1

    def _fill_peaks(self, entries: list[dict[str, Any]]) -> None:
        level, levels = 0, [0]
        for entry in entries:
            if entry["action"] == "alloc":
                level += entry["size"]
            elif entry["action"] == "free_requested":
                level -= entry["size"]
            else:
                continue
            levels.append(level)
        for interval in self.intervals:
            interval.requested = max(levels[interval.begin : interval.end + 1])
