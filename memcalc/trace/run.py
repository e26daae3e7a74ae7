"""Runs one plan on the simulated GPU and returns the trace of its storages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch

from memcalc.kernels.target import Target
from memcalc.records import Component, Phase, Trace
from memcalc.registry.build import build as registry_build
from memcalc.trace import attention, autocast, device
from memcalc.trace.recorder import Recorder
from memcalc.trace.stated import StatedOptimizer
from memcalc.workload.loop import Batch, Job, run
from memcalc.workload.program import Program


STEPS = 2
"""The first step differs (optimizer state is made in it); the second is like all that follow."""


def trace(program: Program, target: Target) -> Trace:
    """Train on the simulated GPU for two optimizer steps.

    Args:
        program: what to run; its model is moved and must not be used again.
        target: the GPU and PyTorch to stand for.
    """
    mode = device.fake_mode()
    attention.install(target)
    autocast.install()
    recorder = Recorder(target)
    with mode, recorder:
        with recorder.phase(Phase.LOAD, 0):
            model = materialize(program.model)
            recorder.label(model.parameters(), Component.WEIGHTS)
            recorder.label(model.buffers(), Component.BUFFERS)
            recorder.follow(model)
            model.train()
            optimizer = _optimizer(program, model)
        job = _job(program, model, optimizer, recorder)
        run(job, _Labels(recorder, model, optimizer), loop=program.plan.loop, steps=STEPS)
    return Trace(
        storages=recorder.storages(),
        events=tuple(recorder.events),
        marks=tuple(recorder.marks),
        inventory=program.inventory,
        steps=STEPS,
        assumptions=(*program.assumptions, *recorder.assumptions),
        versions={"torch": torch.__version__},
    )


def materialize(model: torch.nn.Module) -> torch.nn.Module:
    """Move a meta model to the simulated device, tied tensors once, one by one as ``.to`` does."""
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            fresh = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device.NAME
            )
            if isinstance(tensor, torch.nn.Parameter):
                fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
            moved[id(tensor)] = fresh
        return moved[id(tensor)]

    for module in model.modules():
        for group in (module._parameters, module._buffers):
            for name, tensor in group.items():
                if tensor is not None:
                    group[name] = move(tensor)  # type: ignore[assignment]
    return model


def _optimizer(program: Program, model: torch.nn.Module) -> torch.optim.Optimizer:
    if program.choice.traceable:
        return registry_build(program.choice, model, loop=program.plan.loop)
    return StatedOptimizer(program.choice, program.inventory, model, program.plan.loop)


def _job(
    program: Program,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    recorder: Recorder,
) -> Job:
    plan = program.plan

    def batch() -> Batch:
        made = program.batch(device.NAME)
        recorder.label(
            (value for value in made.values() if isinstance(value, torch.Tensor)), Component.INPUTS
        )
        return made

    return Job(
        model=model,
        optimizer=optimizer,
        batch=batch,
        autocast=program.precision.context(device.NAME),
        scaler=program.precision.scaler(device.NAME),
        grad_accum=plan.grad_accum,
        max_grad_norm=program.max_grad_norm,
        set_to_none=plan.set_to_none,
        upcast_outputs=plan.loop == "trainer" and program.precision.autocast is not None,
    )


class _Labels:
    """Passes phases on to the recorder and names the components each one leaves behind."""

    def __init__(
        self, recorder: Recorder, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.recorder = recorder
        self.model = model
        self.optimizer = optimizer

    @contextlib.contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        with self.recorder.phase(phase, step):
            yield
        if phase is Phase.FORWARD:
            self.recorder.label_living(Phase.FORWARD, Component.ACTIVATIONS)
        elif phase is Phase.BACKWARD:
            self.recorder.label(_gradients(self.model), Component.GRADIENTS)
        elif phase is Phase.STEP:
            self.recorder.label(_states(self.optimizer), Component.OPTIMIZER_STATE)


def _gradients(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    return (p.grad for p in model.parameters() if p.grad is not None)


def _states(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
