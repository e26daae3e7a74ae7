"""The optimizer of a simulated run: its own code where that can run, else its state alone."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.records.model import OptimizerState, Parameter
from memcalc.records.trace import Component
from memcalc.registry import state_of
from memcalc.trace.ledger import Ledger
from memcalc.trace.optimizer import on_cpu
from memcalc.trace.optimizer.state_only import StateOnlyOptimizer, bitsandbytes_update
from memcalc.workload import layouts
from memcalc.workload.in_backward import InBackward
from memcalc.workload.inventory import take
from memcalc.workload.optimizers import make as make_real
from memcalc.workload.program import Program


def make(program: Program, model: torch.nn.Module, ledger: Ledger) -> torch.optim.Optimizer:
    """Make the optimizer of a program over a model on the simulated device.

    Args:
        program: names the optimizer.
        model: the program's, perhaps with fewer layers.
        ledger: told what gradients are that die inside backward.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not program.in_backward:
        return _one(program, model, trained)
    for parameter in trained.values():
        parameter.register_post_accumulate_grad_hook(
            lambda p: ledger.label((p.grad,), Component.GRADIENTS)
        )
    names = {parameter: name for name, parameter in trained.items()}
    return InBackward(names, lambda p: _one(program, model, {names[p]: p}, only=p))


def _one(
    program: Program,
    model: torch.nn.Module,
    parameters: dict[str, torch.nn.Parameter],
    *,
    only: torch.nn.Parameter | None = None,
) -> torch.optim.Optimizer:
    if program.plan.target == "cpu" and on_cpu.runs(program.choice):
        optimizer = make_real(program, model, only=only)
        on_cpu.settle(optimizer)
        return optimizer
    if program.choice.traceable:
        return make_real(program, model, only=only)
    # DeepSpeed's engine puts flat parts in fp32 in place of all parameters.
    inventory = take(model, program.inventory.model, program.inventory.task)
    met = () if layouts.of(program.plan).loop else inventory.parameters
    state = state_of(program.choice, met, program.plan)
    update = bitsandbytes_update if program.choice.row.package == "bitsandbytes" else None

    modules = {one.name: one.module for one in inventory.parameters}

    def anew(name: str, part: torch.Tensor) -> OptimizerState:
        described = Parameter(
            name=name,
            shape=tuple(part.shape),
            dtype=str(part.dtype).removeprefix("torch."),
            module=modules.get(name, ""),
        )
        return state_of(program.choice, [described], program.plan)

    def over(groups: list[Any] | None, **arguments: Any) -> StateOnlyOptimizer:
        return StateOnlyOptimizer(state, parameters, update, groups=groups, anew=anew)

    through = layouts.of(program.plan).optimizer
    if through is None or only is not None:
        return over(None)
    return through(over, list(parameters.values()))
