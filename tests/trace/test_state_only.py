"""Optimizers known by their state make it for what they are over when they step."""

import torch

from memcalc.records.model import OptimizerState, StateTensor
from memcalc.trace.optimizer.state_only import StateOnlyOptimizer


def state_of(name, numel):
    wanted = StateTensor(parameter=name, name="state1", dtype="uint8", numel=numel)
    return OptimizerState(optimizer="o", implementation="i", tensors=(wanted,))


def test_a_flat_part_that_an_engine_puts_there_has_state_of_its_own_size():
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = StateOnlyOptimizer(
        state_of("weight", 16),
        {"weight": weight},
        anew=lambda name, part: state_of(name, part.numel()),
    )
    part = torch.nn.Parameter(torch.zeros(6))
    optimizer.param_groups[0]["params"] = [part]
    part.grad = torch.zeros(6)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[part]["state1"].numel() == 6
    assert weight not in optimizer.state


def test_a_parameter_that_a_wrapper_cuts_down_later_has_state_of_its_part():
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = StateOnlyOptimizer(
        state_of("weight", 16),
        {"weight": weight},
        anew=lambda name, part: state_of(name, part.numel()),
    )
    weight.data = torch.zeros(8)
    weight.grad = torch.zeros(8)
    optimizer.step()
    assert optimizer.state[weight]["state1"].numel() == 8
