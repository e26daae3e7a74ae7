"""Records the memory of a user's training loop, in the format of ``memcalc measure``.

Phases are found as in a simulated script: see ``memcalc.engine.follow.phases``.

The training comes first: a failure here ends the recording with a warning, never the loop.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.files import results
from memcalc.measure import process
from memcalc.measure.gpu.sampler import Sampler
from memcalc.measure.recording.recording import Recording, Seen
from memcalc.records.measurement import Measurement, find_last_step
from memcalc.records.plan import Plan

_KEPT_STEPS = 2
"""Steps at the start whose readings are kept; later, only the highest and the last step are."""
_MOST_STEPS = 20
"""Steps after which a CPU run is no longer recorded: PyTorch's profiler keeps every event in main
memory."""


class Recorder:
    """A context manager around a training loop; ``measurement`` holds the result afterwards.

    Only the constructor raises: later failures are warnings, and ``measurement`` may be None. A
    result that cannot be written to ``output`` is kept elsewhere, and the warning says where.

    Args:
        model: the module whose calls are the forward phase. None means the outermost module.
        optimizer: the optimizer whose steps are counted. None means any.
        output: file to add the result to, or None to write no file.
        plan: fields of ``Plan`` that describe the run, so that it can also be estimated.

    Raises:
        UsageError: ``plan`` has a wrong field or value, or ``model`` is no module.
    """

    measurement: Measurement | None = None

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        output: str | os.PathLike[str] | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise UsageError("memcalc.record takes the model itself; settings go into plan={...}.")
        # Only the first process of a training writes.
        first = os.environ.get("RANK", "0") == "0"
        self._output = Path(output) if output is not None and first else None
        self._settings = dict(plan or {})
        make({"model": "unnamed", **self._settings})
        if self._output is not None:
            try:
                results.append(self._output, None)
            except UsageError as error:
                _warn(f"{error} The result will be kept elsewhere.")
        self._seen = _UserTraining(model, optimizer)
        self._only = optimizer
        self._cuda = torch.cuda.is_available()
        self._recording: Recording | None = None
        self._sampler: Sampler | None = None
        self._failed = False

    def __enter__(self) -> Recorder:
        self._quietly(self._start)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End the recording; ``error`` is recorded if it says that memory ran out."""
        self._quietly(self._finish, error)

    def _quietly(self, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function and return its result; a failure ends the recording and returns None."""
        if self._failed:
            return None
        try:
            return act(*arguments, **named)
        except Exception as error:
            self._failed = True
            _warn(f"the recording ended, the training goes on: {type(error).__name__}: {error}")
            if self._recording is not None:
                with contextlib.suppress(Exception):
                    self._recording.__exit__()
            return None

    def _start(self) -> None:
        if self._cuda:
            self._sampler = Sampler()
            if not torch.cuda.is_initialized():
                self._sampler.record_moment("before", {}, os.getpid())
        self._recording = Recording(
            "cuda" if self._cuda else "cpu",
            self._seen,
            only=self._only,
            guard=functools.partial(_FailureGuard, self._quietly),
        )
        self._seen.recording = self._recording
        self._recording.__enter__()

    def _finish(self, error: BaseException | None) -> None:
        """End the recording, make the measurement, and write it to the output file."""
        recording = self._recording
        assert recording is not None
        if error is None:
            recording.phases.end_training()
        recording.__exit__()
        more = self._nvml_fields()
        readings = recording.counters.readings()
        if error is None:
            last = find_last_step(readings) or 0
            readings = tuple(one for one in readings if one.step <= last)
        failure = recording.failure(error)
        seconds = self._seconds_per_step() if self._cuda else None
        self.measurement = recording.measurement(
            self._describe_plan(), failure, seconds, phases=readings, **more
        )
        if self._output is not None:
            run = results.Run(plan=self.measurement.plan, measurement=self.measurement)
            lost = results.keep(self._output, run)
            if lost is not None:
                _warn(lost)

    def _seconds_per_step(self) -> float | None:
        ends = self._seen.ends
        steps = ends[1:] if len(ends) > 2 else ends
        return (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else None

    def _nvml_fields(self) -> dict[str, Any]:
        """Return the fields of a measurement that NVML gives; on the CPU, why they are unknown."""
        if self._sampler is None:
            speed = ("seconds_per_step", "samples_per_second")
            unknown = dict.fromkeys(speed, "the profiler that reads memory slows it")
            unknown["level"] = "what was there when the recording began is not counted"
            return {"unknown": unknown}
        self._sampler.record_moment("trained", process.read_device(), os.getpid())
        self._sampler.close()
        return self._sampler.measurement_fields()

    def _describe_plan(self) -> Plan:
        model, optimizer = self._seen.model, self._seen.optimizer
        known = {
            "model": type(model).__name__ if model is not None else "unnamed",
            "optim": type(optimizer).__name__.lower() if optimizer else "adamw",
            "target": "cuda" if self._cuda else "cpu",
            **self._settings,
        }
        try:
            return make({**self._seen.shape, **known})
        except UsageError:
            # Shapes that no plan has, such as an empty batch.
            return make(known)


class _FailureGuard:
    """A proxy of an object whose methods never raise."""

    def __init__(self, quietly: Callable[..., Any], one: Any) -> None:
        self._quietly, self._one = quietly, one

    def __getattr__(self, name: str) -> Callable[..., Any]:
        act = functools.partial(self._quietly, getattr(self._one, name))
        self.__dict__[name] = act
        return act


class _UserTraining(Seen):
    """Facts about a training of any length: only some of its phases are kept."""

    recording: Recording

    def begin_step(self, step: int) -> None:
        """Keep the phases of the first steps, of the highest and of the last before this one."""
        if torch.cuda.is_initialized():
            intervals = self.recording.counters.intervals
            highest = max(intervals, key=lambda one: one.peaks.allocated).step
            kept = {*range(_KEPT_STEPS), highest, step - 1, step}
            intervals[:] = [one for one in intervals if one.step in kept]
        elif step == _MOST_STEPS:
            self.recording.__exit__()


record = Recorder
"""``with memcalc.record(model, output="run.json"): ...``"""


def _warn(text: str) -> None:
    warnings.warn(f"memcalc: {' '.join(text.split())}", stacklevel=3)
