"""Trains one plan in this process and reads its memory; as a child, it reports each phase.

A request has the fields of ``Request``; the answer is ``{"measurement": ...}``. Events are
``{"phase": reading}`` and, when the run waits for NVML to be read, ``{"moment": name, "facts": ...,
"pid": ...}``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.children.child import Speaker
from memcalc.engine import program as programs
from memcalc.errors import NO_GPU, MeasureError
from memcalc.files.artifact import decode, encode
from memcalc.measure import process
from memcalc.measure.recording.recording import Recording, Seen
from memcalc.measure.runs.runner import Options, Request
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan
from memcalc.records.trace import PhaseReading
from memcalc.workload import layerdrop, layouts, loops
from memcalc.workload.job import Job, Program
from memcalc.workload.model import report_by_name


class Reporter:
    """A sender of a run's progress to the parent process; without a speaker it sends nothing."""

    def __init__(self, speaker: Speaker | None = None) -> None:
        self._speaker = speaker
        self.place = ""
        """The last phase that ended, as the end of a sentence."""

    def report_phase(self, reading: PhaseReading) -> None:
        """Tell the parent process that a phase has ended."""
        self.place = f" after {reading.phase.value} of step {reading.step + 1}"
        if self._speaker is not None:
            self._speaker.tell(phase=encode(reading))

    def wait_at(self, name: str) -> None:
        """Wait at a named point until the parent process has read the GPU's memory."""
        if self._speaker is not None:
            self._speaker.wait(moment=name, facts=process.read_device(), pid=os.getpid())


def measure(plan: Plan, options: Options, reporter: Reporter | None = None) -> Measurement:
    """Train or generate as a plan says, on a real device, and return the measurement.

    Raises:
        MeasureError: there is no such device, or the weights cannot be loaded.
        UsageError: the plan cannot be built.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise MeasureError(NO_GPU)
    programs.configure(plan)
    program = programs.build(plan, real_weights=options.weights)
    reporter = reporter or Reporter()
    measurement = _measure(program, options, reporter)
    del program
    _empty_cache(options.device)
    reporter.wait_at("freed")
    return measurement


def _measure(program: Program, options: Options, reporter: Reporter) -> Measurement:
    """Run a program and return its measurement."""
    recording, failure, seconds = None, None, None
    with contextlib.ExitStack() as stack:
        reporter.wait_at("before")
        _create_context(options.device, options.index)
        reporter.wait_at("context")
        if options.snapshot is not None:
            stack.enter_context(_record_snapshot(options.snapshot))
        recording = Recording(options.device, Seen(), on_phase=reporter.report_phase)
        try:
            job = _run(program, options, recording)
            reporter.wait_at("trained")
            seconds = _time_step(job, max(2, options.steps - 2)) if job is not None else None
        except (RuntimeError, MemoryError) as error:
            failure = recording.failure(error)
            if failure is None:
                raise
    inventory = program.inventory
    known: dict[str, Any] = {
        "head": inventory.head,
        "config": inventory.config,
        "seq": program.seq,
        "parameters": inventory.numel,
    }
    if program.in_backward or layouts.of(program.plan).package:
        why = "the layout's engine holds them in parts of its own"
        if program.in_backward:
            why = "each is used and freed in backward"
        known |= {"gradients": None, "unknown": {"gradients": why}}
    return recording.measurement(program.plan, failure, seconds, **known)


@contextlib.contextmanager
def _record_snapshot(snapshot: str) -> Iterator[None]:
    """Record the history of PyTorch's allocator, and write the snapshot to a file at the end."""
    torch.cuda.memory._record_memory_history(max_entries=10**7, stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(snapshot)
        torch.cuda.memory._record_memory_history(enabled=None)


def _create_context(device: str, index: int) -> None:
    """Create the CUDA context of a GPU; do nothing on the CPU."""
    if device == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(index)
        torch.cuda.synchronize()


def _run(program: Program, options: Options, recording: Recording) -> Job | None:
    """Load a program, and train for some steps or generate.

    Returns the job of a training, or None after inference.
    """
    plan, device, phases = program.plan, options.device, recording.phases
    with recording:
        program, optimizer = programs.load(program, device, phases.begin)
        recording.weigh(program.model)
        if plan.infers:
            programs.infer(program, phases)
            return None
        phases.leave()
        with recording.steps.pause_counting():
            job = programs.job(program, optimizer, device)
        with layerdrop.off(program.model):
            programs.train(job, phases, options.steps)
    recording.seen.optimizer = optimizer
    return job


def _time_step(job: Job, steps: int) -> float:
    """Return the seconds per step, without readings, which stop the device at every phase."""
    job = replace(job, plan=replace(job.plan, eval=None), restore=None)
    began = 0.0

    def batch() -> Any:
        nonlocal began
        began = began or _synchronized_time(job.device)
        return job.batch()

    loops.of(job.plan).run(replace(job, batch=batch), steps)
    return (_synchronized_time(job.device) - began) / steps


def _synchronized_time(device: str) -> float:
    """Wait for the device to finish its work, and return the time in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _empty_cache(device: str) -> None:
    if device == "cuda":
        gc.collect()
        # After a failure that the device does not survive there is nothing left to empty.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


_CUDA_QUERYING_PACKAGES = ("torchao", "flash_attn", "flash_attn_interface")
"""Packages that make the import of transformers (5.23) query CUDA."""


def warm(architecture: str = "") -> None:
    """Import what runs have in common, but nothing that queries CUDA: forks could not use it then.

    bitsandbytes always queries it; transformers does if certain packages are installed.
    """
    if architecture and not any(map(importlib.util.find_spec, _CUDA_QUERYING_PACKAGES)):
        import transformers

        _ = transformers.PreTrainedModel


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Measure a plan; the entry point of a child process."""
    asked, reporter = decode(Request, request), Reporter(speaker)
    with report_by_name(asked.plan.model, lambda: reporter.place):
        return {"measurement": encode(measure(asked.plan, asked, reporter))}
