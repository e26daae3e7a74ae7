"""Records the memory of a user's training loop, in the format of ``memcalc measure``.

Forward begins when the outermost module is called with gradients on, backward when autograd's
``backward`` is; what follows until the optimizer's step has ended is the step phase, and from
there to the next forward is where gradients are cleared.

The training comes first: whatever fails here ends the recording with a warning, never the loop.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from memcalc.catalog.plan import make
from memcalc.engine.patches import Patches
from memcalc.errors import UsageError
from memcalc.files import results
from memcalc.measure import process
from memcalc.measure.gpu.sampler import Sampler
from memcalc.measure.process import read_state, storage_bytes
from memcalc.measure.recording.readings import CpuReadings, CudaReadings
from memcalc.records.measurement import GpuReading, Measurement, OutOfMemory
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase


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
        self._patches = Patches()
        self._depth = 0
        self._in_backward = False
        self._only = optimizer
        self._model = model
        self._optimizer = optimizer
        self._cuda = torch.cuda.is_available()
        self._readings: CudaReadings | CpuReadings = CudaReadings() if self._cuda else CpuReadings()
        self._seen: dict[str, int] = {}
        self._gradients: int | None = None
        self._ends: list[float] = []
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

    def _follow(self) -> None:
        """See calls of the model, backward, and steps of optimizers; ``_patches`` end it."""
        if self._model is not None:
            hooks = [
                self._model.register_forward_pre_hook(self._opens, with_kwargs=True),
                self._model.register_forward_hook(self._closes, always_call=True),
            ]
        else:
            hooks = [
                modules.register_module_forward_pre_hook(self._opens),
                modules.register_module_forward_hook(self._closes, always_call=True),
            ]
        hooks += [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        for hook in hooks:
            self._patches.also(hook.remove)
        self._patches.wrap(torch.autograd, "backward", self._backward)

    def _opens(
        self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any] | None = None
    ) -> None:
        self._depth += 1
        # Checkpointing calls modules in backward; evaluation calls them without gradients.
        if self._depth != 1 or not torch.is_grad_enabled() or self._in_backward:
            return
        self._model = self._model or module
        by_place = {str(place): value for place, value in enumerate(args)}
        for name, value in {**by_place, **(kwargs or {})}.items():
            if isinstance(value, torch.Tensor) and value.dim():
                self._seen.setdefault("batch", value.shape[0])
                if name == "input_ids" and value.dim() == 2:
                    self._seen["seq"] = max(self._seen.get("seq", 0), value.shape[1])
        self._quietly(self._readings.turn, Phase.FORWARD)

    def _closes(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> None:
        if self._in_backward:
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        self._in_backward = True
        self._quietly(self._readings.turn, Phase.BACKWARD)
        try:
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        finally:
            self._in_backward = False
            self._quietly(self._readings.turn, Phase.STEP)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._only is None or optimizer is self._only:
            self._optimizer = optimizer
            self._quietly(self._count_gradients, optimizer)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._only is None or optimizer is self._only:
            self._quietly(self._end_step)

    def _quietly(self, act: Callable[..., None], *arguments: Any) -> None:
        """Act inside a user's training; a failure ends the recording."""
        if self._failed:
            return
        try:
            act(*arguments)
        except Exception as error:
            self._failed = True
            _warn(f"the recording ended, the training goes on: {type(error).__name__}: {error}")
            with contextlib.suppress(Exception):
                self._patches.undo()
            with contextlib.suppress(Exception):
                self._readings.close(whole=False)

    def _begin(self) -> None:
        if self._cuda:
            self._sampler = Sampler()
            if not torch.cuda.is_initialized():
                self._sampler.moment("before", {}, os.getpid())
            torch.cuda.init()
            self._noticed = process.observe_oom()
        self._began = time.perf_counter()
        self._readings.open()
        self._follow()

    def _finish(self, error: BaseException | None) -> None:
        self._patches.undo()
        failure = None
        if error is not None and process.ran_out(error):
            failure = process.read_failure(error, self._readings.at, self._noticed)
        self._readings.close(whole=error is None)
        gpu, reason = self._look()
        self.measurement = self._measurement(failure, gpu, reason)
        if self._output is not None:
            run = results.Run(plan=self.measurement.plan, measurement=self.measurement)
            lost = results.keep(self._output, run)
            if lost is not None:
                _warn(lost)

    def _count_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        groups = optimizer.param_groups
        self._gradients = storage_bytes(p.grad for group in groups for p in group["params"])

    def _end_step(self) -> None:
        self._readings.turn(Phase.ZERO_GRAD)
        if self._cuda:
            torch.cuda.synchronize()
        self._ends.append(time.perf_counter())

    def _look(self) -> tuple[GpuReading | None, str]:
        if self._sampler is None:
            return None, "a CPU run has no CUDA allocator"
        self._sampler.moment("trained", process.facts(), os.getpid())
        reading, failure = self._sampler.reading(), self._sampler.failure
        self._sampler.close()
        return reading, failure or "NVML listed no process of the run"

    def _plan(self) -> Plan:
        known = {
            "model": type(self._model).__name__ if self._model is not None else "unnamed",
            "optim": type(self._optimizer).__name__.lower() if self._optimizer else "adamw",
            "target": "cuda" if self._cuda else "cpu",
            **self._settings,
        }
        try:
            return make({**self._seen, **known})
        except UsageError:
            # Shapes that no plan has, such as an empty batch.
            return make(known)

    def _measurement(
        self, failure: OutOfMemory | None, gpu: GpuReading | None, reason: str
    ) -> Measurement:
        model, optimizer = self._model, self._optimizer
        steps = self._ends[1:] if len(self._ends) > 2 else self._ends
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
            gradients=self._gradients,
            state=read_state(optimizer) if optimizer is not None and failure is None else None,
            phases=tuple(self._readings.readings()),
            seconds_per_step=seconds,
            samples_per_second=plan.batch * plan.grad_accum / seconds if seconds else None,
            process_used=used,
            gpu=gpu,
            out_of_memory=failure,
            seconds=time.perf_counter() - self._began,
            unknown=unknown,
            **process.measured(cuda=self._cuda),
        )


record = Recorder
"""``with memcalc.record(model, output="run.json"): ...``"""


def _warn(text: str) -> None:
    warnings.warn(f"memcalc: {' '.join(text.split())}", stacklevel=3)
