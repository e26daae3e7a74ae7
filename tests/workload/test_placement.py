"""A model is built without memory for its parameters, however large; its buffers have values."""

import torch

from memcalc.workload.placement import parameters_on_meta


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        with torch.device("cpu"):
            self.up = torch.nn.Parameter(torch.empty(1 << 20, 1 << 22))
            self.down = torch.nn.Parameter(torch.zeros((1 << 22, 1 << 20)))
        self.router = torch.nn.Linear(8, 1 << 40)
        self.register_buffer("scale", torch.arange(4.0))


def test_parameters_that_no_host_can_hold_are_built_and_buffers_keep_their_values():
    with parameters_on_meta():
        model = Experts()
    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(p.nbytes for p in model.parameters()) > 1 << 45
    assert model.scale.tolist() == [0.0, 1.0, 2.0, 3.0]
