"""Trains one plan in this process and reads its memory; as a child, it reports each phase.

A request is the fields of ``Request``, answered by ``{"measurement": ...}``. Events are
``{"phase": reading}`` and, where the run waits to be looked at, ``{"moment": name, "facts": ...,
"pid": ...}``.
"""

from __future__ import annotations

import contextlib
import functools
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
from memcalc.engine.follow.phases import Observer
from memcalc.errors import NO_GPU, MeasureError
from memcalc.files.artifact import decode, encode
from memcalc.measure import process
from memcalc.measure.follower import Follower
from memcalc.measure.process import read_state, storage_bytes
from memcalc.measure.runs.runner import Options, Request
from memcalc.records.measurement import Measurement, OutOfMemory, PhaseReading
from memcalc.records.plan import Plan
from memcalc.workload import layerdrop, layouts, loops
from memcalc.workload.job import Job, Program
from memcalc.workload.model import report_by_name


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
    listener = listener or Listener()
    seen = _Gradients()
    found: dict[str, Any] = {}
    noticed = None
    with contextlib.ExitStack() as stack:
        listener.moment("before")
        noticed = _open(options.device, options.index)
        listener.moment("context")
        if options.snapshot is not None:
            stack.enter_context(_recorded(options.snapshot))
        follower = Follower(options.device, seen, told=listener.said)
        run = functools.partial(_generate if plan.infers else _train, program, options)
        try:
            run(follower, seen, listener, found)
        except (RuntimeError, MemoryError) as error:
            if not process.ran_out(error):
                raise
            at = follower.phases.step, follower.phases.phase
            found["out_of_memory"] = process.read_failure(error, at, noticed)
    found["seconds"] = time.perf_counter() - started
    found["phases"] = tuple(follower.counters.readings())
    measurement = _measurement(program, options, found)
    del program
    _free(options.device)
    listener.moment("freed")
    return measurement


@contextlib.contextmanager
def _recorded(snapshot: str) -> Iterator[None]:
    """Have PyTorch write down what its allocator does, into a file at the end."""
    torch.cuda.memory._record_memory_history(max_entries=10**7, stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(snapshot)
        torch.cuda.memory._record_memory_history(enabled=None)


def _open(device: str, index: int) -> process.RefusedRequest | None:
    """Make the CUDA context, and nothing else yet."""
    if device != "cuda":
        return None
    torch.cuda.init()
    torch.cuda.set_device(index)
    torch.cuda.synchronize()
    return process.observe_oom()


def _load(
    program: Program, device: str, follower: Follower, found: dict[str, Any]
) -> tuple[Program, Any]:
    """The program with its model on the device, and the optimizer of one that trains."""
    program, optimizer = programs.load(program, device, follower.phases.begin)
    found["weights"] = storage_bytes(program.model.parameters())
    found["buffers"] = storage_bytes(program.model.buffers())
    return program, optimizer


def _train(
    program: Program,
    options: Options,
    follower: Follower,
    seen: _Gradients,
    listener: Listener,
    found: dict[str, Any],
) -> None:
    """Train for some steps that are followed and a few more that are timed; fills ``found``."""
    plan, device = program.plan, options.device
    with follower:
        program, optimizer = _load(program, device, follower, found)
        if not program.in_backward and not layouts.of(plan).package:
            seen.model = program.model
        follower.phases.leave()
        with follower.steps.prepared():
            job = programs.job(program, optimizer, device)
        with layerdrop.off(program.model):
            programs.train(job, follower.phases, options.steps)
    found["gradients"], found["state"] = seen.bytes, read_state(optimizer)
    listener.moment("trained")
    bare = replace(job, plan=replace(plan, eval=None), restore=None)
    seconds = _time_step(bare, max(2, options.steps - 2))
    found["seconds_per_step"] = seconds
    found["samples_per_second"] = plan.batch * plan.grad_accum / seconds


def _time_step(job: Job, steps: int) -> float:
    """Take the time of steps that nobody follows: reading stops the device at every phase."""
    began = 0.0

    def batch() -> Any:
        nonlocal began
        began = began or _finished(job.device)
        return job.batch()

    loops.of(job.plan).run(replace(job, batch=batch), steps)
    return (_finished(job.device) - began) / steps


def _finished(device: str) -> float:
    """The time at which the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _generate(
    program: Program,
    options: Options,
    follower: Follower,
    seen: _Gradients,
    listener: Listener,
    found: dict[str, Any],
) -> None:
    """Generate; what is about training stays unknown."""
    with follower:
        program, _ = _load(program, options.device, follower, found)
        programs.infer(program, follower.phases)
    listener.moment("trained")


class _Gradients(Observer):
    """Counts the gradients of a model before they are used."""

    model: torch.nn.Module | None = None
    bytes: int | None = None

    def enters_step(self, optimizer: Any, *, inside_backward: bool) -> None:
        """Count them; asked for each time, as a loop's library may shard parameters."""
        if self.model is not None:
            self.bytes = storage_bytes(p.grad for p in self.model.parameters())


def _free(device: str) -> None:
    if device == "cuda":
        gc.collect()
        # After a failure that the device does not survive there is nothing left to empty.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def _measurement(program: Program, options: Options, found: dict[str, Any]) -> Measurement:
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
        phases=found["phases"],
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
    with report_by_name(asked.plan.model, lambda: listener.place):
        return {"measurement": encode(measure(asked.plan, asked, listener))}
