"""Records the memory of a user's training loop, in the format of ``memcalc measure``.

Its phases are told as those of a simulated script are: see ``memcalc.engine.follow.phases``.

The training comes first: whatever fails here ends the recording with a warning, never the loop.
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
from memcalc.records.measurement import Measurement, last_finished
from memcalc.records.plan import Plan

_KEPT_STEPS = 2
"""First steps whose readings are kept; of the others, the highest and the last are."""
_MOST_STEPS = 20
"""Steps after which a CPU run is not followed any more: PyTorch's profiler keeps every event in
main memory."""


class Recorder:
    """A context manager around a training loop; ``measurement`` holds the result afterwards.

    Once it is made nothing raises: what goes wrong is a warning, and ``measurement`` may be
    ``None``. A result that ``output`` cannot take is kept elsewhere, and the warning says where.

    Args:
        model: whose calls are the forward phase; ``None``: whatever module is outermost.
        optimizer: whose steps end a step; ``None``: any.
        output: file to add the result to; ``None``: none.
        plan: fields of ``Plan`` that are known of the run, so that it can be estimated too.

    Raises:
        UsageError: ``plan`` makes no sense, or ``model`` is none.
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
        # Of several processes of one training, the first one writes.
        first = os.environ.get("RANK", "0") == "0"
        self._output = Path(output) if output is not None and first else None
        self._settings = dict(plan or {})
        make({"model": "unnamed", **self._settings})
        if self._output is not None:
            try:
                results.append(self._output, None)
            except UsageError as error:
                _warn(f"{error} The result will be kept elsewhere.")
        self._seen = _SeenByUser(model, optimizer)
        self._only = optimizer
        self._cuda = torch.cuda.is_available()
        self._recording: Recording | None = None
        self._sampler: Sampler | None = None
        self._failed = False

    def __enter__(self) -> Recorder:
        self._quietly(self._begin)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End the recording; an error that ended the loop is recorded if memory ran out."""
        self._quietly(self._finish, error)

    def _quietly(self, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function inside a user's training; a failure ends the recording."""
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

    def _begin(self) -> None:
        if self._cuda:
            self._sampler = Sampler()
            if not torch.cuda.is_initialized():
                self._sampler.moment("before", {}, os.getpid())
        self._recording = Recording(
            "cuda" if self._cuda else "cpu",
            self._seen,
            only=self._only,
            guard=functools.partial(_Guarded, self._quietly),
        )
        self._seen.recording = self._recording
        self._recording.__enter__()

    def _finish(self, error: BaseException | None) -> None:
        recording = self._recording
        assert recording is not None
        if error is None:
            recording.phases.end_training()
        recording.__exit__()
        more = self._look()
        readings = recording.counters.readings()
        if error is None:
            last = last_finished(readings) or 0
            readings = tuple(one for one in readings if one.step <= last)
        failure = recording.failure(error)
        seconds = self._seconds_per_step() if self._cuda else None
        self.measurement = recording.measurement(
            self._plan(), failure, seconds, phases=readings, **more
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

    def _look(self) -> dict[str, Any]:
        """Return what NVML said of the GPU, as fields of a measurement."""
        if self._sampler is None:
            speed = ("seconds_per_step", "samples_per_second")
            unknown = dict.fromkeys(speed, "the profiler that reads memory slows it")
            unknown["level"] = "what was there when the recording began is not counted"
            return {"unknown": unknown}
        self._sampler.moment("trained", process.facts(), os.getpid())
        self._sampler.close()
        return self._sampler.figures()

    def _plan(self) -> Plan:
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


class _Guarded:
    """Stands before an object; whatever it does, it does quietly."""

    def __init__(self, quietly: Callable[..., Any], one: Any) -> None:
        self._quietly, self._one = quietly, one

    def __getattr__(self, name: str) -> Callable[..., Any]:
        act = functools.partial(self._quietly, getattr(self._one, name))
        self.__dict__[name] = act
        return act


class _SeenByUser(Seen):
    """Facts of a training of any number of steps: not all of its phases are kept."""

    recording: Recording

    def begins_step(self, step: int) -> None:
        """Keep the phases of the first steps, of the highest and of the last before this one."""
        if torch.cuda.is_initialized():
            intervals = self.recording.counters.intervals
            highest = max(intervals, key=lambda one: one.allocated).step
            kept = {*range(_KEPT_STEPS), highest, step - 1, step}
            intervals[:] = [one for one in intervals if one.step in kept]
        elif step == _MOST_STEPS:
            self.recording.__exit__()


record = Recorder
"""``with memcalc.record(model, output="run.json"): ...``"""


def _warn(text: str) -> None:
    warnings.warn(f"memcalc: {' '.join(text.split())}", stacklevel=3)
