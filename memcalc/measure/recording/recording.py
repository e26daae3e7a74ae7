"""Records a training in this process, on a real device, and returns its measurement."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Self

import torch

from memcalc.engine import torch_internals as internals
from memcalc.engine.compiling import hide_hooks
from memcalc.engine.counters import Counters
from memcalc.engine.cpu_counters import CpuCounters
from memcalc.engine.follow.phases import Observer, Phases
from memcalc.engine.follow.steps import Steps
from memcalc.engine.notes import held_by
from memcalc.engine.patches import Patches
from memcalc.measure import process
from memcalc.measure.process import read_state, storage_bytes
from memcalc.records.measurement import Measurement, OutOfMemory
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase, PhaseReading

NO_ALLOCATOR = "a CPU run has no CUDA allocator"
_TRAINED = ("weights", "gradients", "state", "seconds_per_step", "samples_per_second")


class Seen(Observer):
    """Facts about a training, found while it runs: model, optimizer, gradients, batch."""

    gradients: int | None = None
    """Bytes of all gradients at the start of the last optimizer step."""

    def __init__(self, model: torch.nn.Module | None = None, optimizer: Any = None) -> None:
        self.model, self.optimizer = model, optimizer
        self.shape: dict[str, int] = {}
        """Fields of a plan that are read from batches."""
        self.ends: list[float] = []
        """Times at which steps ended, in seconds of ``perf_counter``."""

    def meet_model(self, module: torch.nn.Module) -> None:
        """Keep the first module that is called as the model."""
        if torch.is_grad_enabled() and self.model is None:
            self.model = module

    def enter_model(self, args: Any) -> None:
        """Read batch size and sequence length from the model's arguments."""
        by_place = {str(place): value for place, value in enumerate(args)}
        for name, value in {**by_place, **internals.keywords_of_call()}.items():
            if isinstance(value, torch.Tensor) and value.dim() and torch.is_grad_enabled():
                self.shape.setdefault("batch", value.shape[0])
                if name == "input_ids" and value.dim() == 2:
                    self.shape["seq"] = max(self.shape.get("seq", 0), value.shape[1])

    def enter_step(self, optimizer: Any, *, inside_backward: bool) -> None:
        """Keep the bytes of all gradients before the optimizer uses them."""
        if hasattr(optimizer, "param_groups"):
            self.optimizer = optimizer
        # A loop's library may have replaced the parameters since the step before.
        of_model = self.model.parameters() if self.model is not None else ()
        self.gradients = storage_bytes(one.grad for one in (*of_model, *held_by(optimizer)))

    def leave_step(self, optimizer: Any, steps: int) -> None:
        """Keep the time at which the step ended on the device."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.ends.append(perf_counter())


class Recording(Patches):
    """A context manager that records the memory of a program phase by phase."""

    def __init__(
        self,
        device: str,
        seen: Seen,
        *,
        on_phase: Callable[[PhaseReading], None] | None = None,
        only: torch.optim.Optimizer | None = None,
        guard: Callable[[Any], Any] = lambda one: one,
    ) -> None:
        """Prepare to record what runs on a device.

        Args:
            device: ``cuda`` or ``cpu``.
            seen: observes what the program calls.
            on_phase: called with each phase when the next one begins.
            only: the optimizer whose steps are counted. None means any.
            guard: wraps an object that is called while the program runs.

        Raises:
            MeasureError: on the CPU, another profiler runs already.
        """
        super().__init__()
        self.seen, self._cuda = seen, device == "cuda"
        self._began = perf_counter()
        self._refused: list[Sequence[int]] = []
        self._sizes: dict[str, Any] = {}
        self.counters = (
            Counters(history=False, on_phase=on_phase)
            if self._cuda
            else CpuCounters(on_phase=on_phase)
        )
        self.steps = Steps(only=only)
        self.phases = Phases(guard(self.counters), self.steps, guard(seen))

    def __enter__(self) -> Self:
        if self._cuda:
            torch.cuda.init()
            internals.watch_out_of_memory(lambda device, *sizes: self._refused.append(sizes))
            self.counters.install(self)
        self.steps.install(self)
        self.phases.install(self)
        hide_hooks(self)
        self.phases.begin(Phase.LOAD)
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()
        self.counters.end()

    def weigh(self, model: torch.nn.Module) -> None:
        """Keep a model's parameter count and the present bytes of its weights and buffers."""
        self.seen.model = model
        self._sizes = {
            "head": type(model).__name__,
            "parameters": sum(one.numel() for one in model.parameters()),
            "weights": storage_bytes(model.parameters()),
            "buffers": storage_bytes(model.buffers()),
        }

    def failure(self, error: BaseException | None) -> OutOfMemory | None:
        """Return the figures of an out-of-memory error, or None for any other error."""
        if error is None or not process.is_out_of_memory(error):
            return None
        return process.read_failure(error, self.phases.step, self.phases.phase, self._refused)

    def measurement(
        self, plan: Plan, failure: OutOfMemory | None, seconds_per_step: float | None, **more: Any
    ) -> Measurement:
        """Return the measurement of the run; ``more``: its fields that the caller knows."""
        seen, samples = self.seen, plan.batch * plan.grad_accum
        if not self._sizes and seen.model is not None:
            self.weigh(seen.model)
        state = None
        if seen.optimizer is not None and failure is None:
            state = read_state(seen.optimizer)
        known: dict[str, Any] = {
            **self._sizes,
            "gradients": seen.gradients,
            "state": state,
            "seconds_per_step": seconds_per_step,
            "samples_per_second": samples / seconds_per_step if seconds_per_step else None,
            "seq": plan.seq,
            "phases": self.counters.readings(),
            **more,
        }
        why = "the run ended out of memory" if failure is not None else "nothing was trained"
        unknown = {name: why for name in _TRAINED if known.get(name) is None}
        if not self._cuda:
            rungs = ("allocated", "reserved", "process_used", "retries")
            unknown |= dict.fromkeys(rungs, NO_ALLOCATOR)
        return Measurement(
            plan=plan,
            out_of_memory=failure,
            seconds=perf_counter() - self._began,
            **{**known, "unknown": unknown | known.get("unknown", {})},
            **process.fields_of_process(cuda=self._cuda),
        )
