"""Runs a program's loop on the simulated GPU and names what each phase leaves behind."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Phase
from memcalc.trace import device, draws, quantised
from memcalc.trace.ledger import Ledger
from memcalc.trace.operators.sparse_parts import parts
from memcalc.trace.optimizer import on_cpu
from memcalc.trace.optimizer.make import make as optimizer_for
from memcalc.trace.optimizer.state_only import StateOnlyOptimizer
from memcalc.trace.packages import deepspeed, hqq, quanto, transformers
from memcalc.trace.placing import Named
from memcalc.trace.recorder import TraceRecorder
from memcalc.workload import inference, layerdrop, layouts, loops
from memcalc.workload.inference import caches_of
from memcalc.workload.inputs import Batch, without_adapters
from memcalc.workload.job import Job
from memcalc.workload.program import Program
from memcalc.workload.resume import restore as load_state
from memcalc.workload.resume import saved_state


def steps_of(program: Program) -> int:
    """The last is like all that follow."""
    if program.plan.infers:
        return 1
    return layouts.of(program.plan).settles


def train(program: Program, named: Named, recorder: TraceRecorder) -> None:
    """Train for some optimizer steps."""
    model = program.model.train()
    here = program.plan.target == "cpu"
    kernels = on_cpu.installed(program.choice, recorder) if here else contextlib.nullcontext()
    with recorder.modules.follow(named), kernels, layerdrop.off(model), draws.alike():
        recorder.ledger.go_by_parameter()
        optimizer = optimizer_for(program, model, recorder.ledger)
        job = _job(program, optimizer, recorder)
        labels = _Labels(recorder.ledger, model, optimizer)
        loops.of(program.plan).run(job, labels, steps_of(program))
        optimizer.state.clear()
        for parameter in model.parameters():
            parameter.grad = None
        # What loops leave in circles (a gradient scaler) dies here in each trace, not in some.
        gc.collect()


def infer(program: Program, named: Named, recorder: TraceRecorder) -> None:
    """Run the model forward, or have it generate."""
    ledger = recorder.ledger

    def given(module: Any, args: Any, named: dict[str, Any]) -> None:
        # A beam search orders its cache anew between two passes.
        ledger.label(caches_of(named), Component.KV_CACHE)

    def returned(module: Any, args: Any, outputs: Any) -> None:
        if isinstance(outputs, Mapping):
            ledger.label(caches_of(outputs), Component.KV_CACHE)

    model = without_adapters(program.model)
    job = program.inference(device=device.NAME, batch=lambda: _batch(program, ledger))
    with recorder.modules.follow(named), contextlib.ExitStack() as hooks:
        hooks.enter_context(_cached(program.plan, ledger))
        hooks.callback(model.register_forward_pre_hook(given, with_kwargs=True).remove)
        hooks.callback(model.register_forward_hook(returned).remove)
        inference.run(job, ledger)


def _cached(plan: Plan, ledger: Ledger) -> contextlib.AbstractContextManager[None]:
    """What a kind of cache needs of the device and of its package."""
    if plan.cache.startswith("offloaded"):
        return transformers.offloading(ledger)
    if plan.cache == "quantized":
        return quanto.of_fakes()
    if plan.cache == "quantized-hqq" and plan.target == "cuda":
        return hqq.on_cuda(ledger)
    return contextlib.nullcontext()


def _batch(program: Program, ledger: Ledger) -> Batch:
    made = program.batch(device.NAME)
    ledger.label(
        (value for value in made.values() if isinstance(value, torch.Tensor)), Component.INPUTS
    )
    return made


def _job(program: Program, optimizer: torch.optim.Optimizer, recorder: TraceRecorder) -> Job:
    def restore() -> None:
        if isinstance(optimizer, StateOnlyOptimizer):
            optimizer.restore()
            return
        with recorder.aside():
            saved = saved_state(optimizer)
        load_state(optimizer, saved)

    return program.job(
        optimizer,
        device=device.NAME,
        batch=lambda: _batch(program, recorder.ledger),
        restore=restore,
        simulated=True,
    )


class _Labels:
    """Passes phases on to the ledger and names the components each one leaves behind."""

    def __init__(
        self, ledger: Ledger, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.ledger = ledger
        self.model = model
        self.optimizer = optimizer

    @contextlib.contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        with self.ledger.phase(phase, step):
            yield
        if phase is Phase.LOAD:
            # An engine that takes model and optimizer over.
            quantised.label_shards(self.model, self.ledger)
            self.ledger.label(deepspeed.shards(self.model), Component.WEIGHTS)
            self.ledger.label(self.model.buffers(), Component.BUFFERS)
            self.ledger.label(deepspeed.masters(self.optimizer), Component.MASTER_WEIGHTS)
            self.ledger.label_living(Phase.LOAD, Component.COMMUNICATION)
        elif phase is Phase.FORWARD:
            self.ledger.label_living(Phase.FORWARD, Component.ACTIVATIONS)
        elif phase is Phase.BACKWARD:
            self.ledger.label(_gradients(self.model), Component.GRADIENTS)
            if self.ledger.wrapped:
                # Of shards that are not reduced yet, a wrapper holds the whole gradients.
                self.ledger.label_living(Phase.BACKWARD, Component.GRADIENTS)
        if phase in (Phase.RESUME, Phase.BACKWARD, Phase.STEP):
            for parameter, tensors in _states(self.optimizer):
                self.ledger.label(tensors, Component.OPTIMIZER_STATE)
                if isinstance(parameter, torch.Tensor):
                    self.ledger.adopt(parameter, tensors)


def _gradients(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    return (part for p in model.parameters() if p.grad is not None for part in parts(p.grad))


def _states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, list[torch.Tensor]]]:
    # ZeroRedundancyOptimizer holds another that has this rank's share.
    for owner, state in getattr(optimizer, "optim", optimizer).state.items():
        tensors = (value for value in state.values() if isinstance(value, torch.Tensor))
        yield owner, [part for value in tensors for part in parts(value)]
