"""How a program's model comes onto the simulated device: as it is, or as one rank's part."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.records.trace import Component, Phase
from memcalc.trace import device, quantised, streams, subclasses, wrappers
from memcalc.trace.folding.unfold import BASE, WRAPPED_BASE
from memcalc.trace.ledger import Ledger
from memcalc.trace.packages import bitsandbytes, deepspeed, peft, transformers
from memcalc.trace.recorder import TraceRecorder
from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.torch_private.names import replaced
from memcalc.workload import layouts, liger
from memcalc.workload.layouts import SINGLE, Layout, Rank
from memcalc.workload.prepare import finished
from memcalc.workload.program import Program
from memcalc.workload.quantised import load, loaded_on, written

Named = Sequence[tuple[str, torch.nn.Module]]
"""Modules by the paths they have in the model itself, without what wrappers put before them."""


def ranks(program: Program) -> tuple[int, ...]:
    """Which processes to trace: the one that the plan names, else the first.

    The last as well, where it may hold more.

    Raises:
        UsageError: there is no such rank.
    """
    plan, spread, layout = program.plan, layouts.spread(program.plan), layouts.of(program.plan)
    if plan.rank is not None:
        return (layouts.checked_rank(plan),)
    even = layout.even is None or layout.even(program.model, spread.sizes)
    return (0,) if even else (0, spread.world - 1)


def fold_length(program: Program) -> int:
    """Repetitions of a layer that a trace of this program is continued from."""
    return BASE if layouts.spread(program.plan).layout == SINGLE else WRAPPED_BASE


@contextlib.contextmanager
def placed(
    program: Program, recorder: TraceRecorder, shapes: Any, rank: int
) -> Iterator[tuple[Program, Named]]:
    """The program with its model on the simulated device, inside the fake mode and the recorder.

    Args:
        program: its model is on the meta device, and is there again afterwards.
        recorder: sees what the model takes.
        shapes: a ``ShapeEnv`` where sizes may be symbols.
        rank: which process this is, where there are several.
    """
    if program.plan.scheme is not None:
        with _quantised(program, recorder, shapes, rank) as (ready, loaded):
            yield ready, tuple(loaded.named_modules())
        return
    if layouts.spread(program.plan).layout == SINGLE:
        with _as_found(program.model):
            _use_kernels(program, program.model)
            with device.fake_mode(shapes), recorder, _moved(program.model, recorder.ledger):
                yield program, tuple(program.model.named_modules())
        return
    spread, layout = layouts.spread(program.plan), layouts.of(program.plan)
    model = copy.deepcopy(program.model)
    _use_kernels(program, model)
    streams.renumber()
    named = tuple(model.named_modules())
    with (
        wrappers.process_group(rank, spread.world),
        device.fake_mode(shapes),
        recorder,
        wrappers.seen_by(recorder),
        _package(layout, recorder.ledger, rank, spread.world),
    ):
        recorder.ledger.wrapped = True
        with recorder.ledger.phase(Phase.LOAD, 0):
            wrapped = layout.place(model, _rank(program, rank, recorder.ledger))
        _label(wrapped, recorder.ledger)
        _belong(named, recorder.ledger)
        recorder.ledger.label_living(Phase.LOAD, Component.COMMUNICATION)
        yield replace(program, model=wrapped), named


def _use_kernels(program: Program, model: torch.nn.Module) -> None:
    if program.plan.liger:
        liger.apply(model)


def _belong(named: Named, ledger: Ledger) -> None:
    """Say which module each tensor is of; nobody holds them afterwards, as a wrapper may not."""
    for path, module in named:
        own = (*module._parameters.values(), *module._buffers.values())
        ledger.belong(path, [tensor for tensor in own if tensor is not None])


def _package(
    layout: Layout, ledger: Ledger, rank: int, world: int
) -> contextlib.AbstractContextManager[None]:
    """What the layout's library needs, if it is not PyTorch's."""
    if layout.package == "deepspeed":
        return deepspeed.simulated(ledger, rank, world)
    # accelerate tells parameters by their addresses as it hands new ones to the optimizer.
    return replaced(FakeTensor, "data_ptr", subclasses.pointer)


@contextlib.contextmanager
def _quantised(
    program: Program, recorder: TraceRecorder, shapes: Any, rank: int
) -> Iterator[tuple[Program, torch.nn.Module]]:
    """The program over a model that is loaded quantised, layer by layer, and then wrapped.

    Args:
        program: says how; its model is copied.
        recorder: sees what it takes.
        shapes: a ``ShapeEnv`` where sizes may be symbols.
        rank: which process this is, where there are several.

    Returns:
        Beside the program, the model without adapters and wrappers.
    """
    ledger, model = recorder.ledger, copy.deepcopy(program.model)
    world = layouts.spread(program.plan).world
    checkpoint = written(model, program.plan)
    states: list[torch.Tensor] = []

    def read(name: str, like: torch.Tensor) -> torch.Tensor:
        _at_layer_of(name, ledger)
        if not like.is_meta:
            states.append(like)
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")

    bitsandbytes.forget()
    with _loading(recorder, shapes, rank, world):
        with (
            ledger.phase(Phase.LOAD, 0),
            transformers.loading_in_turn(lambda name: _at_layer_of(name, ledger)),
            bitsandbytes.states_read(states),
        ):
            place = "cpu" if device.NAME == "cpu" else f"{device.NAME}:0"
            place = loaded_on(program.plan, place)
            loaded = load(model, checkpoint, program.plan, place, read)
            _label_quantised(loaded, ledger)
        if program.plan.infers and program.plan.adapters is None:
            ready = finished(program, loaded)
        else:
            with ledger.phase(Phase.PREPARE, 0), peft.prepared(ledger):
                ready = finished(program, loaded)
                _use_kernels(ready, ready.model)
                _label_quantised(loaded, ledger)
                if world > 1:
                    ready = _wrapped(ready, rank, ledger)
        yield ready, loaded


@contextlib.contextmanager
def _loading(recorder: TraceRecorder, shapes: Any, rank: int, world: int) -> Iterator[None]:
    """The fake mode and the recorder over one rank, in which packages make tensors of their own."""
    with contextlib.ExitStack() as stack:
        if world > 1:
            streams.renumber()
            stack.enter_context(wrappers.process_group(rank, world))
        stack.enter_context(device.fake_mode(shapes))
        stack.enter_context(recorder)
        if world > 1:
            stack.enter_context(wrappers.seen_by(recorder))
        stack.enter_context(subclasses.made_of_fakes())
        yield


def _wrapped(ready: Program, rank: int, ledger: Ledger) -> Program:
    """The program over a model that is on its device already, in the wrapper of the layout."""
    ledger.leave_repetition()
    ledger.wrapped = True
    placed_already = replace(_rank(ready, rank, ledger), move=lambda model: None)
    wrapped = layouts.of(ready.plan).place(ready.model, placed_already)
    quantised.label_shards(wrapped, ledger)
    ledger.label(filter(wrappers.is_shard, wrapped.parameters()), Component.WEIGHTS)
    ledger.label(wrapped.buffers(), Component.BUFFERS)
    ledger.label_living(Phase.PREPARE, Component.COMMUNICATION)
    return replace(ready, model=wrapped)


def _at_layer_of(name: str, ledger: Ledger) -> None:
    """Say that a tensor of the checkpoint is read; not every one has a module of its own."""
    path = name
    while path and path not in ledger.units:
        path = path.rpartition(".")[0]
    ledger.at(path or name.rpartition(".")[0])


def _label_quantised(model: torch.nn.Module, ledger: Ledger) -> None:
    quantised.label(model, ledger)
    _label(model, ledger)


def _rank(program: Program, number: int, ledger: Ledger) -> Rank:
    spread = layouts.spread(program.plan)

    def move(model: torch.nn.Module) -> None:
        _give_memory(model, ledger)

    return Rank(
        number=number,
        world=spread.world,
        device=torch.device("cpu") if device.NAME == "cpu" else torch.device(device.NAME, 0),
        sizes=spread.sizes,
        options=layouts.arguments(program.plan),
        move=move,
        fill=lambda model: None,
    )


def _label(model: torch.nn.Module, ledger: Ledger) -> None:
    ledger.label(model.parameters(), Component.WEIGHTS)
    ledger.label(model.buffers(), Component.BUFFERS)


Group = dict[str, Any]


def _give_memory(model: torch.nn.Module, ledger: Ledger) -> list[tuple[Group, Group]]:
    """Move a meta model to the simulated device, tied tensors once, one by one as ``.to`` does.

    Returns:
        Each dict of parameters or buffers, and what it held before.
    """
    simulated: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in simulated:
            fresh = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device.NAME
            )
            if isinstance(tensor, torch.nn.Parameter):
                fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
            simulated[id(tensor)] = fresh
        return simulated[id(tensor)]

    before: list[tuple[Group, Group]] = []
    for path, module in model.named_modules():
        ledger.at(path)
        for group in (module._parameters, module._buffers):
            before.append((group, dict(group)))
            for name, tensor in group.items():
                if tensor is not None:
                    group[name] = move(tensor)
        if isinstance(module, torch.nn.RNNBase):
            # As ``RNNBase._apply`` does: cuDNN wants the weights in one buffer.
            module._init_flat_weights()
    return before


@contextlib.contextmanager
def _moved(model: torch.nn.Module, ledger: Ledger) -> Iterator[None]:
    """The model on the simulated device; afterwards on the meta device again."""
    with ledger.phase(Phase.LOAD, 0):
        before = _give_memory(model, ledger)
        _label(model, ledger)
    try:
        yield
    finally:
        for group, held in before:
            group.clear()
            group.update(held)


@contextlib.contextmanager
def _as_found(model: torch.nn.Module) -> Iterator[None]:
    """Undo what a run changes in its modules: some swap parts of themselves as they go."""
    found = [(module, dict(module.__dict__), _parts(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, parts in found:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for part, held in parts:
                part.clear()
                part.update(held) if isinstance(part, dict) else part.extend(held)


def _parts(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """The dicts and lists in which a module names its parts and hooks, and what is in them.

    They are refilled, not replaced: handles of hooks know them.
    """
    held = (value for value in module.__dict__.values() if isinstance(value, dict | list))
    return [(value, dict(value) if isinstance(value, dict) else list(value)) for value in held]
