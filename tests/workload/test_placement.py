"""A model is built without memory for its parameters, however large; its buffers have values."""

import pathlib

import torch

from memcalc.engine.program import parameters_on_meta


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


def test_a_model_of_many_parameters_leaves_no_heap_behind_that_a_fork_would_be_refused_for():
    def heap():
        return next(
            int(end, 16) - int(begin, 16)
            for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
            if line.endswith("[heap]")
            for begin, end in [line.split()[0].split("-")]
        )

    before, small = heap(), []
    with parameters_on_meta():
        for _ in range(200):
            torch.nn.Linear(2048, 2048)
            # Settles where a parameter was, so that the next one would lie behind it.
            small.append(torch.zeros(300))
    assert heap() - before < 200 << 20
