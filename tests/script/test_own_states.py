"""What optimizers keep and are given: states of one's own, and rates that are tensors."""

import pytest

from memcalc.records.trace import Component

STATES = """
import torch

class Whitened(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            for dim, size in enumerate(parameter.shape):
                state.setdefault(dim, torch.zeros(size, size, device="cuda"))
            state.setdefault("both", [torch.zeros_like(parameter), (torch.zeros_like(parameter),)])
            parameter.sub_(parameter.grad, alpha=0.1)

model = torch.nn.Linear(64, 32, bias=False).cuda()
optimizer = Whitened(model.parameters())
for _ in range(3):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_states_named_by_numbers_and_in_lists_are_the_optimizers(run):
    found = run(STATES, steps=0).traced.prediction
    names = [tensor.name for tensor in found.optimizer_state.tensors]
    assert names == ["0", "1", "both.0", "both.1.0"]
    bytes_kept = 4 * (32 * 32 + 64 * 64 + 2 * 32 * 64)
    assert 4 * sum(tensor.numel for tensor in found.optimizer_state.tensors) == bytes_kept
    assert found.components[Component.OPTIMIZER_STATE] == bytes_kept


RATES = """
import torch
for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
    for place in ("cpu", "cuda"):
        model = torch.nn.Linear(64, 64).cuda()
        rate = torch.tensor(0.1, device=place)
        optimizer = kind(model.parameters(), lr=rate, fused=True)
        for _ in range(2):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            before = torch.cuda.memory_allocated()
            optimizer.step()
        # A rate of the host stays there, and the second step makes nothing.
        assert torch.cuda.memory_allocated() == before
"""


def test_a_fused_step_takes_its_rate_from_a_tensor(run):
    assert run(RATES, steps=0).ending.code == 0


NORMS = """
import torch
bnb = __import__("bitsandbytes")
for kind, more in ((bnb.optim.LAMB, {}), (bnb.optim.LARS, {"momentum": 0.9})):
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = kind(model.parameters(), lr=0.1, **more)
    for _ in range(2):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_norms_that_bitsandbytes_hands_over_are_read(run):
    pytest.importorskip("bitsandbytes")
    assert run(NORMS, steps=0).ending.code == 0
