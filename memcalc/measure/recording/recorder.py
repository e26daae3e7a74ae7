"""Records the memory of a user's training loop, in the format of ``memcalc measure``.

Its phases are told as those of a simulated script are: see ``memcalc.engine.follow.phases``.

The training comes first: whatever fails here ends the recording with a warning, never the loop.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from memcalc.catalog.plan import make
from memcalc.engine import torch_internals as internals
from memcalc.engine.follow.phases import Observer
from memcalc.errors import UsageError
from memcalc.files import results
from memcalc.measure import process
from memcalc.measure.follower import Follower
from memcalc.measure.gpu.sampler import Sampler
from memcalc.measure.process import read_state, storage_bytes
from memcalc.measure.readings import GpuCounters
from memcalc.records.measurement import (
    GpuReading,
    Measurement,
    OutOfMemory,
    PhaseReading,
    last_finished,
)
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
        self._seen = _Seen(model, optimizer)
        self._only = optimizer
        self._cuda = torch.cuda.is_available()
        self._follower: Follower | None = None
        self._noticed: process.RefusedRequest | None = None
        self._sampler: Sampler | None = None
        self._began = time.perf_counter()
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
        """Act inside a user's training; a failure ends the recording."""
        if self._failed:
            return None
        try:
            return act(*arguments, **named)
        except Exception as error:
            self._failed = True
            _warn(f"the recording ended, the training goes on: {type(error).__name__}: {error}")
            if self._follower is not None:
                with contextlib.suppress(Exception):
                    self._follower.__exit__()
            return None

    def _begin(self) -> None:
        if self._cuda:
            self._sampler = Sampler()
            if not torch.cuda.is_initialized():
                self._sampler.moment("before", {}, os.getpid())
            torch.cuda.init()
            self._noticed = process.observe_oom()
        self._began = time.perf_counter()
        self._follower = Follower(
            "cuda" if self._cuda else "cpu",
            self._seen,
            only=self._only,
            guard=functools.partial(_Guarded, self._quietly),
        )
        self._seen.follower = self._follower
        self._follower.__enter__()

    def _finish(self, error: BaseException | None) -> None:
        follower = self._follower
        assert follower is not None
        if error is None:
            follower.phases.end_training()
        follower.__exit__()
        failure = None
        if error is not None and process.ran_out(error):
            at = follower.phases.step, follower.phases.phase
            failure = process.read_failure(error, at, self._noticed)
        gpu, reason = self._look()
        readings = list(follower.counters.readings())
        if error is None:
            last = last_finished(readings) or 0
            readings = [one for one in readings if one.step <= last]
        self.measurement = self._measurement(failure, gpu, reason, readings)
        if self._output is not None:
            run = results.Run(plan=self.measurement.plan, measurement=self.measurement)
            lost = results.keep(self._output, run)
            if lost is not None:
                _warn(lost)

    def _look(self) -> tuple[GpuReading | None, str]:
        if self._sampler is None:
            return None, "a CPU run has no CUDA allocator"
        self._sampler.moment("trained", process.facts(), os.getpid())
        reading, failure = self._sampler.reading(), self._sampler.failure
        self._sampler.close()
        return reading, failure or "NVML listed no process of the run"

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

    def _measurement(
        self,
        failure: OutOfMemory | None,
        gpu: GpuReading | None,
        reason: str,
        readings: list[PhaseReading],
    ) -> Measurement:
        model, optimizer, ends = self._seen.model, self._seen.optimizer, self._seen.ends
        steps = ends[1:] if len(ends) > 2 else ends
        seconds = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else None
        unknown: dict[str, str] = {}
        if not self._cuda:
            seconds, unknown["seconds_per_step"] = None, "the profiler that reads memory slows it"
            unknown["level"] = "what was there when the recording began is not counted"
        used = gpu.peak_process if gpu is not None else None
        if used is None:
            unknown["process_used"] = reason
        parameters = list(model.parameters()) if model is not None else None
        plan = self._plan()
        return Measurement(
            plan=plan,
            head=type(model).__name__ if model is not None else "",
            seq=plan.seq,
            parameters=sum(p.numel() for p in parameters) if parameters is not None else None,
            weights=storage_bytes(parameters) if parameters is not None else None,
            buffers=storage_bytes(model.buffers()) if model is not None else None,
            gradients=self._seen.gradients,
            state=read_state(optimizer) if optimizer is not None and failure is None else None,
            phases=tuple(readings),
            seconds_per_step=seconds,
            samples_per_second=plan.batch * plan.grad_accum / seconds if seconds else None,
            process_used=used,
            gpu=gpu,
            out_of_memory=failure,
            seconds=time.perf_counter() - self._began,
            unknown=unknown,
            **process.measured(cuda=self._cuda),
        )


class _Guarded:
    """Stands before an object; whatever it does, it does quietly."""

    def __init__(self, quietly: Callable[..., Any], one: Any) -> None:
        self._quietly, self._one = quietly, one

    def __getattr__(self, name: str) -> Callable[..., Any]:
        act = functools.partial(self._quietly, getattr(self._one, name))
        self.__dict__[name] = act
        return act


class _Seen(Observer):
    """What a training loop shows of itself."""

    follower: Follower
    gradients: int | None = None

    def __init__(self, model: torch.nn.Module | None, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer
        self.shape: dict[str, int] = {}
        """Fields of a plan that are read off batches."""
        self.ends: list[float] = []
        """When steps ended."""

    def meets_model(self, module: torch.nn.Module) -> None:
        """Take the first module for the model."""
        if torch.is_grad_enabled():
            self.model = self.model or module

    def enters_model(self, args: Any) -> None:
        """Read the batch."""
        by_place = {str(place): value for place, value in enumerate(args)}
        for name, value in {**by_place, **internals.keywords_of_call()}.items():
            if isinstance(value, torch.Tensor) and value.dim() and torch.is_grad_enabled():
                self.shape.setdefault("batch", value.shape[0])
                if name == "input_ids" and value.dim() == 2:
                    self.shape["seq"] = max(self.shape.get("seq", 0), value.shape[1])

    def enters_step(self, optimizer: Any, *, inside_backward: bool) -> None:
        """Count the gradients before they are used."""
        self.optimizer = optimizer
        groups = optimizer.param_groups
        self.gradients = storage_bytes(p.grad for group in groups for p in group["params"])

    def leaves_step(self, optimizer: Any, steps: int) -> None:
        """Take the time."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def begins_step(self, step: int) -> None:
        """Keep the phases of the first steps, of the highest and of the last before this one."""
        if isinstance(self.follower.counters, GpuCounters):
            intervals = self.follower.counters.intervals
            highest = max(intervals, key=lambda one: one.allocated).step
            kept = {*range(_KEPT_STEPS), highest, step - 1, step}
            intervals[:] = [one for one in intervals if one.step in kept]
        elif step == _MOST_STEPS:
            self.follower.__exit__()


record = Recorder
"""``with memcalc.record(model, output="run.json"): ...``"""


def _warn(text: str) -> None:
    warnings.warn(f"memcalc: {' '.join(text.split())}", stacklevel=3)
