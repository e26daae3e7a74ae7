"""Keeps the readings of a training loop, of its first and highest steps, or of a block of code.

On CUDA the allocator is read as phases end. On the CPU one profiler runs from the first phase to
the last, and its events are told apart by time afterwards: a profiler that is stopped inside
somebody's ``record_function``, as ``Optimizer.step`` is one, leaves memory corrupted (seen with
PyTorch 2.13).
"""

import time
from typing import Any

import torch

from memcalc.engine.patches import Patches
from memcalc.measure.meters import CpuEvents, CpuMeter, CudaMeter, profiler, requested_only
from memcalc.records.measurement import PhaseReading, last_finished
from memcalc.records.trace import Phase

_KEPT_STEPS = 2
"""First steps whose readings are kept; of the others, the highest and the last are."""
_MOST_STEPS = 20
"""Steps after which the profiler stops: it keeps every event in main memory."""


class CudaReadings:
    """Reads CUDA's allocator, phase by phase."""

    def __init__(self) -> None:
        self.at = (0, Phase.LOAD)
        self._step: list[PhaseReading] = []
        self._first: list[list[PhaseReading]] = []
        self._highest: list[PhaseReading] = []
        self._last: list[PhaseReading] = []
        self._open = False

    def open(self) -> None:
        """Begin to read."""
        self._meter = CudaMeter(None)
        self._meter.begin()
        self._open = True

    def turn(self, phase: Phase) -> None:
        """End the phase that runs and begin another."""
        if not self._open:
            return
        step, now = self.at
        reading = self._meter.end(now, step)
        if not _between(now, phase):
            self._step.append(reading)
        if now in (Phase.ZERO_GRAD, Phase.LOAD):
            self._end_step(now)
        self.at = (step + (now is Phase.ZERO_GRAD), phase)
        self._meter.begin()

    def close(self, *, whole: bool) -> None:
        """End everything; of a step that was not finished nothing is kept unless it failed."""
        if not self._open:
            return
        step, now = self.at
        if now in (Phase.ZERO_GRAD, Phase.LOAD) and whole:
            self._step.append(self._meter.end(now, step))
            self._end_step(now)
        elif not whole:
            self._last = self._step
        self._meter.close()
        self._open = False

    def _end_step(self, ended: Phase) -> None:
        readings, self._step = self._step, []
        if ended is Phase.LOAD or len(self._first) <= _KEPT_STEPS:
            self._first.append(readings)
        if not self._highest or _top(readings) > _top(self._highest):
            self._highest = readings
        self._last = readings

    def readings(self) -> list[PhaseReading]:
        """What is kept, in order."""
        kept = [r for step in self._first for r in step] + self._highest + self._last
        return sorted(dict.fromkeys(kept), key=lambda r: (r.step, r.phase is not Phase.LOAD))


class CpuReadings:
    """Reads the CPU allocator's events of the first steps."""

    def __init__(self) -> None:
        self.at = (0, Phase.LOAD)
        self._spans: list[tuple[int, Phase, int]] = []
        """Step, phase, and when it ended."""
        self._readings: list[PhaseReading] = []
        self._open = False

    def open(self) -> None:
        """Begin to read."""
        self._profiler = profiler()
        self._open = True

    def turn(self, phase: Phase) -> None:
        """End the phase that runs and begin another."""
        step, now = self.at
        if self._open:
            self._spans.append((step, now, time.time_ns()))
        self.at = (step + (now is Phase.ZERO_GRAD), phase)
        # A forward is nobody's record_function, unless the loop itself has one around it.
        if self._open and phase is Phase.FORWARD and self.at[0] >= _MOST_STEPS:
            self._stop()

    def close(self, *, whole: bool) -> None:
        """End everything; of a step that was not finished nothing is kept unless it failed."""
        if not self._open:
            return
        step, now = self.at
        if now in (Phase.ZERO_GRAD, Phase.LOAD) and whole:
            self._spans.append((step, now, time.time_ns()))
        self._stop()
        if whole:
            last = last_finished(self._readings) or 0
            self._readings = [r for r in self._readings if r.step <= last]

    def _stop(self) -> None:
        self._profiler.__exit__(None, None, None)
        self._open = False
        events = iter((*CpuEvents().of(self._profiler), None))
        event = next(events)
        level = 0
        for number, (step, phase, ended) in enumerate(self._spans):
            peak = level
            while event is not None and event[0] <= ended:
                level += event[1]
                peak = max(peak, level)
                event = next(events)
            following = self._spans[number + 1][1] if number + 1 < len(self._spans) else None
            if following is None or not _between(phase, following):
                self._readings.append(requested_only(step, phase, peak))

    def readings(self) -> list[PhaseReading]:
        """What is kept, in order."""
        return self._readings


def _between(now: Phase, phase: Phase) -> bool:
    """After backward may come another micro-batch: then there was no update to read."""
    return now is Phase.STEP and phase is Phase.FORWARD


def _top(readings: list[PhaseReading]) -> int:
    return max((r.allocated or r.requested for r in readings), default=0)


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
