"""Trains one plan in this process and reads its memory; as a child, it reports each phase.

A request is the fields of ``Request``, answered by ``{"measurement": ...}``. Events are
``{"phase": reading}`` and, where the run waits to be looked at, ``{"moment": name, "facts": ...,
"pid": ...}``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.children.child import Speaker
from memcalc.engine import program as programs
from memcalc.errors import NO_GPU, MeasureError
from memcalc.files.artifact import decode, encode
from memcalc.measure import process
from memcalc.measure.meters import CpuMeter, CudaMeter
from memcalc.measure.process import read_state, storage_bytes
from memcalc.measure.runs.runner import Options, Request
from memcalc.records.measurement import Measurement, OutOfMemory, PhaseReading
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase
from memcalc.workload import inference, layerdrop, layouts, loops
from memcalc.workload.job import Program
from memcalc.workload.model import in_its_words


class Listener:
    """Passes on how a run goes, where somebody listens."""

    def __init__(self, speaker: Speaker | None = None) -> None:
        self._speaker = speaker
        self.place = ""
        """Where the run is, as far as it is known."""

    def said(self, reading: PhaseReading) -> None:
        """A phase has ended."""
        self.place = f" after {reading.phase.value} of step {reading.step + 1}"
        if self._speaker is not None:
            self._speaker.tell(phase=encode(reading))

    def moment(self, name: str) -> None:
        """Wait at a quiet point until the asker has read what it wants to read."""
        if self._speaker is not None:
            self._speaker.wait(moment=name, facts=process.facts(), pid=os.getpid())


def measure(plan: Plan, options: Options, listener: Listener | None = None) -> Measurement:
    """Train for real.

    Raises:
        MeasureError: there is no such device, or the weights cannot be loaded.
        UsageError: the plan cannot be built.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise MeasureError(NO_GPU)
    started = time.perf_counter()
    programs.configure(plan)
    program = programs.build(plan, real_weights=options.weights)
    meter = CudaMeter(options.snapshot) if options.device == "cuda" else CpuMeter()
    watch = _Watch(meter, listener or Listener())
    found: dict[str, Any] = {}
    noticed = None
    try:
        watch.listener.moment("before")
        noticed = _open(options.device, options.index)
        watch.listener.moment("context")
        (_generate if plan.infers else _train)(program, options, watch, found)
    except (RuntimeError, MemoryError) as error:
        if not process.ran_out(error):
            raise
        found["out_of_memory"] = process.read_failure(error, watch.at, noticed)
    finally:
        watch.close()
    found["seconds"] = time.perf_counter() - started
    measurement = _measurement(program, watch, options, found)
    del program
    _free(options.device)
    watch.listener.moment("freed")
    return measurement


def _open(device: str, index: int) -> process.RefusedRequest | None:
    """Make the CUDA context, and nothing else yet."""
    if device != "cuda":
        return None
    torch.cuda.init()
    torch.cuda.set_device(index)
    torch.cuda.synchronize()
    return process.observe_oom()


def _load(
    program: Program, device: str, watch: _Watch, found: dict[str, Any]
) -> tuple[Program, Any]:
    """The program with its model on the device, and the optimizer of one that trains."""
    program, optimizer = programs.load(program, device, watch)
    found["weights"] = storage_bytes(program.model.parameters())
    found["buffers"] = storage_bytes(program.model.buffers())
    return program, optimizer


def _train(program: Program, options: Options, watch: _Watch, found: dict[str, Any]) -> None:
    """Train for some steps under the meter and a few more under the clock; fills ``found``."""
    plan, device = program.plan, options.device
    program, optimizer = _load(program, device, watch, found)
    model = program.model
    if not program.in_backward and not layouts.of(plan).package:
        # Asked for each time: whoever holds parameters that a loop shards keeps them whole.
        watch.before_clearing = lambda: storage_bytes(p.grad for p in model.parameters())
    job, loop = programs.job(program, optimizer, device), loops.of(plan)
    with layerdrop.off(model):
        loop.run(job, watch, options.steps)
    found["gradients"], found["state"] = watch.gradients, read_state(optimizer)
    watch.listener.moment("trained")
    clock = _Clock(device)
    clock.tick()
    # Reading a meter stops the device at every phase; a step's time is taken without it.
    bare = replace(job, plan=replace(plan, eval=None), restore=None)
    loop.run(bare, clock, max(2, options.steps - 2))
    seconds = (clock.ends[-1] - clock.ends[0]) / (len(clock.ends) - 1)
    found["seconds_per_step"] = seconds
    found["samples_per_second"] = plan.batch * plan.grad_accum / seconds


def _generate(program: Program, options: Options, watch: _Watch, found: dict[str, Any]) -> None:
    """Generate under the meter; what is about training stays unknown."""
    program, _ = _load(program, options.device, watch, found)
    inference.run(program, watch, device=options.device)
    watch.listener.moment("trained")


class _Watch:
    """Reads the meter around every phase."""

    def __init__(self, meter: CudaMeter | CpuMeter, listener: Listener) -> None:
        self.meter = meter
        self.listener = listener
        self.readings: list[PhaseReading] = []
        self.at = (0, Phase.LOAD)
        self.gradients: int | None = None
        self.before_clearing: Callable[[], int] | None = None

    @contextlib.contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        self.at = (step, phase)
        if phase is Phase.ZERO_GRAD and self.before_clearing is not None:
            self.gradients = self.before_clearing()
        self.meter.begin()
        yield
        self.readings.append(self.meter.end(phase, step))
        self.listener.said(self.readings[-1])

    def close(self) -> None:
        self.before_clearing = None
        self.meter.close()


class _Clock:
    """Takes the time of steps, the device having finished each."""

    def __init__(self, device: str) -> None:
        self.finish: Callable[[], None] = (
            torch.cuda.synchronize if device == "cuda" else lambda: None
        )
        self.ends: list[float] = []

    def tick(self) -> None:
        self.finish()
        self.ends.append(time.perf_counter())

    @contextlib.contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        yield
        if phase is Phase.ZERO_GRAD:
            self.tick()


def _free(device: str) -> None:
    if device == "cuda":
        gc.collect()
        # After a failure that the device does not survive there is nothing left to empty.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def _measurement(
    program: Program, watch: _Watch, options: Options, found: dict[str, Any]
) -> Measurement:
    inventory = program.inventory
    cuda = options.device == "cuda"
    failure: OutOfMemory | None = found.get("out_of_memory")
    wanted = ("weights", "buffers", "gradients", "state", "seconds_per_step", "samples_per_second")
    why = "the run ended out of memory" if failure is not None else "nothing was trained"
    known: dict[str, Any] = {name: found.get(name) for name in wanted}
    unknown = {name: why for name, value in known.items() if value is None}
    if program.in_backward:
        unknown["gradients"] = "each is used and freed in backward"
    elif layouts.of(program.plan).package:
        unknown["gradients"] = "the layout's engine holds them in parts of its own"
    if not cuda:
        reason = "a CPU run has no CUDA allocator"
        unknown |= dict.fromkeys(("allocated", "reserved", "process_used", "retries"), reason)
    return Measurement(
        plan=program.plan,
        head=inventory.head,
        config=inventory.config,
        seq=program.seq,
        parameters=inventory.numel,
        **known,
        phases=tuple(watch.readings),
        out_of_memory=failure,
        seconds=found["seconds"],
        unknown=unknown,
        **process.measured(cuda=cuda),
    )


_MAKE_IT_ASK = ("torchao", "flash_attn", "flash_attn_interface")
"""Packages for which transformers (5.23) asks CUDA, or imports what does, as it is imported."""


def warm(architecture: str = "") -> None:
    """Import what runs have in common, but nothing that asks CUDA: a fork could not use it then.

    bitsandbytes asks at once; transformers does where it finds others.
    """
    if architecture and not any(map(importlib.util.find_spec, _MAKE_IT_ASK)):
        import transformers

        _ = transformers.PreTrainedModel


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Measure a plan, as the module of a child process."""
    asked, listener = decode(Request, request), Listener(speaker)
    with in_its_words(asked.plan.model, lambda: listener.place):
        return {"measurement": encode(measure(asked.plan, asked, listener))}
