"""Runs one plan on the simulated GPU and returns the trace of its storages."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.kernels.attention.choice import Backend, choose
from memcalc.kernels.target import Target
from memcalc.records.trace import Component, Phase, Trace
from memcalc.trace import device, self_check, torch_private
from memcalc.trace.folding.fold import Run, trace_folded
from memcalc.trace.folding.layers import Stack
from memcalc.trace.folding.tagged import TaggedTrace, tag
from memcalc.trace.ledger import Ledger
from memcalc.trace.operators import attention, autocast, overrides
from memcalc.trace.optimizer.make import make as optimizer_for
from memcalc.trace.optimizer.state_only import StateOnlyOptimizer
from memcalc.trace.recorder import TraceRecorder
from memcalc.trace.scratch.kernels import TargetKernelMemory
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.workload import layouts, loops
from memcalc.workload.inputs import Batch
from memcalc.workload.job import Job
from memcalc.workload.program import Program
from memcalc.workload.resume import restore as load_state
from memcalc.workload.resume import saved_state

STEPS = 2
"""The first step differs (optimizer state is made in it); the second is like all that follow."""


def trace(
    program: Program,
    target: Target,
    *,
    notes: tuple[str, ...] = (),
    breadcrumbs: Breadcrumbs | None = None,
    symbols: Symbols | None = None,
) -> Trace:
    """Train on the simulated GPU for two optimizer steps.

    Args:
        program: what to run; its model is moved, and back on the meta device afterwards.
        target: the GPU and PyTorch to stand for.
        notes: what was assumed so far.
        breadcrumbs: shall always say where the program is.
        symbols: of the program's batches; sizes that hold one are written down as numbers.
    """
    said: dict[str, None] = {}
    missing: dict[str, None] = {}
    once = tracer(program, target, said, missing=missing, breadcrumbs=breadcrumbs, symbols=symbols)
    tagged, folded = trace_folded(program.model, once)
    if folded:
        said["repeated layers are traced a few times and continued, proven on one more"] = None
    assumptions = dict.fromkeys((*notes, *program.assumptions, *said))
    known = as_trace(tagged, program, tuple(assumptions))
    return replace(known, uncounted=tuple(missing))


def tracer(
    program: Program,
    target: Target,
    said: dict[str, None],
    *,
    missing: dict[str, None] | None = None,
    breadcrumbs: Breadcrumbs | None = None,
    symbols: Symbols | None = None,
) -> Run:
    """A function that traces the program as it is when called; arguments as for ``trace``.

    Args:
        program: what to run.
        target: the GPU and PyTorch to stand for.
        said: grows by what was assumed.
        missing: grows by what kernels take that nobody knows.
        breadcrumbs: shall always say where the program is.
        symbols: of the program's batches.
    """
    device.use(program.plan.target)
    autocast.install()
    overrides.install()
    said.update(dict.fromkeys((*self_check.run(), *_of_another_torch(target))))
    allowed = _ATTENTION.get(program.plan.attention)
    attention.install(target, allowed, choose if symbols is None else symbols.choose)
    kernels = TargetKernelMemory(target) if symbols is None else symbols

    def once(stacks: Sequence[Stack], repeats: int) -> TaggedTrace:
        recorder = TraceRecorder(
            kernels if program.plan.target == "cuda" else None,
            breadcrumbs,
            symbols,
        )
        recorder.ledger.units = _units(program.model, stacks, repeats)
        shapes = None if symbols is None else symbols.env
        with (
            _as_found(program.model),
            device.fake_mode(shapes),
            recorder,
            _moved(program.model, recorder),
        ):
            _train(program, recorder)
            tagged = recorder.ledger.tagged_trace(recorder.flops[STEPS - 1])
        said.update(dict.fromkeys((*recorder.assumptions, *autocast.unread())))
        if missing is not None and isinstance(kernels, TargetKernelMemory):
            missing.update(dict.fromkeys(kernels.uncounted))
        return tagged

    return once


def _of_another_torch(target: Target) -> Iterator[str]:
    installed = torch_private.installed_version()
    if target.torch != installed:
        here, there = (".".join(map(str, version)) for version in (installed, target.torch))
        yield f"what runs is PyTorch {here}'s code; its kernels and allocator are those of {there}"


def as_trace(tagged: TaggedTrace, program: Program, assumptions: tuple[str, ...]) -> Trace:
    """What was recorded, without the repetitions."""
    return Trace(
        storages=tuple(tagged.storages),
        events=tuple(tagged.events),
        marks=tuple(tagged.marks),
        inventory=program.inventory,
        steps=STEPS,
        seq=program.seq,
        flops=tagged.flops,
        assumptions=assumptions,
        versions={"torch": str(torch.__version__)},
    )


_ATTENTION = {
    name: frozenset({Backend(name), Backend.MATH})
    for name in ("flash", "efficient", "cudnn", "math")
}


def _units(model: torch.nn.Module, stacks: Sequence[Stack], repeats: int) -> dict[str, int]:
    """For every module inside a repeated layer, the tag of its repetition."""
    units = {}
    for number, stack in enumerate(stacks):
        layers = model.get_submodule(stack.path)
        for index, layer in enumerate(layers.children()):
            unit = stack.unit(index, repeats)
            if unit is not None:
                for name, _ in layer.named_modules(prefix=f"{stack.path}.{index}"):
                    units[name] = tag(number, unit)
    return units


def _train(program: Program, recorder: TraceRecorder) -> None:
    model = layouts.of(program.plan).wrap(program.model.train())
    with recorder.follow(model):
        optimizer = optimizer_for(program, model, recorder.ledger)
        job = _job(program, optimizer, recorder)
        labels = _Labels(recorder.ledger, model, optimizer)
        loops.of(program.plan).run(job, labels, STEPS)
        optimizer.state.clear()
        for parameter in model.parameters():
            parameter.grad = None


@contextlib.contextmanager
def _as_found(model: torch.nn.Module) -> Iterator[None]:
    """Undo what a run changes in its modules: some swap parts of themselves as they go."""
    found = [(module, _copied(module.__dict__)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in found:
            module.__dict__.clear()
            module.__dict__.update(attributes)


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a module, with the dicts that name its parts."""
    return {
        name: copy.copy(value) if isinstance(value, dict) else value
        for name, value in attributes.items()
    }


@contextlib.contextmanager
def _moved(model: torch.nn.Module, recorder: TraceRecorder) -> Iterator[None]:
    """Move a meta model to the simulated device, tied tensors once, one by one as ``.to`` does.

    Afterwards the model is on the meta device again.
    """
    simulated: dict[int, torch.Tensor] = {}
    originals: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in simulated:
            fresh = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device.NAME
            )
            if isinstance(tensor, torch.nn.Parameter):
                fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
            simulated[id(tensor)] = fresh
        return simulated[id(tensor)]

    with recorder.ledger.phase(Phase.LOAD, 0):
        for path, module in model.named_modules():
            recorder.ledger.at(path)
            for group in (module._parameters, module._buffers):
                originals.append((group, dict(group)))
                for name, tensor in group.items():
                    if tensor is not None:
                        group[name] = move(tensor)
        recorder.ledger.label(model.parameters(), Component.WEIGHTS)
        recorder.ledger.label(model.buffers(), Component.BUFFERS)
    try:
        yield
    finally:
        for group, before in originals:
            group.clear()
            group.update(before)


def _job(program: Program, optimizer: torch.optim.Optimizer, recorder: TraceRecorder) -> Job:
    def batch() -> Batch:
        made = program.batch(device.NAME)
        recorder.ledger.label(
            (value for value in made.values() if isinstance(value, torch.Tensor)), Component.INPUTS
        )
        return made

    def restore() -> None:
        if isinstance(optimizer, StateOnlyOptimizer):
            optimizer.restore()
            return
        with recorder.aside():
            saved = saved_state(optimizer)
        load_state(optimizer, saved)

    return program.job(optimizer, device=device.NAME, batch=batch, restore=restore, simulated=True)


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
        if phase is Phase.FORWARD:
            self.ledger.label_living(Phase.FORWARD, Component.ACTIVATIONS)
        elif phase is Phase.BACKWARD:
            self.ledger.label(_gradients(self.model), Component.GRADIENTS)
        if phase in (Phase.RESUME, Phase.BACKWARD, Phase.STEP):
            for parameter, tensors in _states(self.optimizer):
                self.ledger.label(tensors, Component.OPTIMIZER_STATE)
                if isinstance(parameter, torch.Tensor):
                    self.ledger.adopt(parameter, tensors)


def _gradients(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    return (p.grad for p in model.parameters() if p.grad is not None)


def _states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, list[torch.Tensor]]]:
    for owner, state in optimizer.state.items():
        yield owner, [value for value in state.values() if isinstance(value, torch.Tensor)]
