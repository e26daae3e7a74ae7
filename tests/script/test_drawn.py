"""Numbers drawn on the GPU: other than the GPU's, distributed alike, and the same when set back."""

import os

import pytest

from memcalc.script.driver.run import run as run_over_driver
from memcalc.script.simulate import plan_of, simulate
from memcalc.trace.drawn import SAID

CUDA = os.environ.get("MEMCALC_CUDA_PYTHON")

MASKED = """
import torch
from torch import nn

tokens, width, batch, length = 5000, 64, 16, 256
embed, head = nn.Embedding(tokens, width).cuda(), nn.Linear(width, tokens).cuda()
for step in range(2):
    words = torch.randint(0, tokens, (batch, length), device="cuda")
    masked = torch.rand(batch, length, device="cuda") < 0.15
    assert 500 < masked.sum().item() < 730, masked.sum().item()
    logits = head(embed(words)[masked])
    assert len(logits) == masked.sum().item() == len(masked.nonzero())
    nn.functional.cross_entropy(logits, words[masked]).backward()
"""


def test_as_many_logits_are_made_as_a_drawn_mask_lets_through(run):
    found = run(MASKED)
    assert found.ending.code == 0
    answer = found.traced.prediction
    assert SAID in answer.assumptions
    # Three of the logits at once: 15 % of 4,096 tokens, in four bytes each.
    assert answer.peak.requested < 4 * 4096 * 5000 * 4 * 0.15 + (20 << 20)


SET_BACK = """
import copy, pickle
import torch
torch.manual_seed(3)
first, second = torch.rand(50, device="cuda"), torch.rand(50, device="cuda")
assert not torch.equal(first, second)
torch.cuda.manual_seed(3)
assert torch.equal(first, torch.rand(50, device="cuda"))
state = torch.cuda.get_rng_state()
assert torch.equal(second, torch.rand(50, device="cuda"))
with torch.random.fork_rng(devices=[0]):
    torch.rand(9, device="cuda")
third = torch.randn(50, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(second, torch.rand(50, device="cuda"))
assert torch.equal(third, torch.randn(50, device="cuda"))

own, like = (torch.Generator("cuda").manual_seed(8) for _ in range(2))
order = torch.randperm(20, device="cuda", generator=own)
assert sorted(order.tolist()) == list(range(20))
assert order.tolist() == torch.randperm(20, device="cuda", generator=like).tolist()
assert own.get_offset() == like.get_offset() > 0
torch.manual_seed(5)
fourth = torch.rand(20, device="cuda")
for generator in (own, like):
    torch.rand(20, device="cuda", generator=generator)
torch.manual_seed(5)
assert torch.equal(fourth, torch.rand(20, device="cuda"))
for same in (own.clone_state(), copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
    state = own.get_state()
    assert torch.rand(3, device="cuda", generator=own).tolist() == (
        torch.rand(3, device="cuda", generator=same).tolist()
    )
    own.set_state(state)
own.set_state(torch.Generator("cuda").manual_seed(8).get_state())
assert order.tolist() == torch.randperm(20, device="cuda", generator=own).tolist()
"""

MADE_AGAIN = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.drop = nn.Linear(32, 32), nn.Dropout(0.1)

    def forward(self, x):
        kept = torch.rand(x.shape[:2], device=x.device) < 0.5
        out = x.clone()
        out[kept] = self.drop(self.line(x[kept]))
        return out

layers = nn.ModuleList(Drops() for _ in range(3)).cuda()
for step in range(2):
    x = torch.randn(8, 100, 32, device="cuda")
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    x.sum().backward()
"""

CAPTURED = """
import torch
line = torch.nn.Linear(64, 64).cuda()
def step():
    (line(torch.randn(32, 64, device="cuda")) * torch.rand(32, 64, device="cuda")).sum().backward()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
graph.replay()
assert torch.rand(9, device="cuda").sum().item() > 0
"""

KINDS = """
import torch
many = {"device": "cuda"}
assert 200 < torch.bernoulli(torch.full((1000,), 0.3, **many)).sum().item() < 400
assert 2.9 < torch.empty(1000, **many).uniform_(2, 4).mean().item() < 3.1
assert set(torch.multinomial(torch.tensor([0.0, 1, 1]).cuda(), 50, True).tolist()) == {1, 2}
assert torch.randint(5, 9, (100,), **many).min().item() >= 5
assert 0.8 < torch.empty(5000, **many).exponential_().mean().item() < 1.2
assert 300 < (torch.dropout(torch.ones(1000, **many), 0.6, True) > 0).sum().item() < 500
assert 4.5 < torch.normal(5.0, 1.0, (1000,), **many).mean().item() < 5.5
assert torch.rand_like(torch.empty(9, **many)).unique().numel() == 9
model = torch.nn.Linear(64, 64, **many)
assert model.weight.abs().sum().item() == 0.0
assert torch.rand(4, **many).mul(model.weight[0, :4]).sum().item() == 0.0
assert torch.rand(1 << 19, **many).sum().item() == 0.0
"""


@pytest.mark.parametrize("script", [SET_BACK, MADE_AGAIN, CAPTURED, KINDS])
def test_a_generator_that_is_set_back_draws_the_same_again(run, script):
    assert run(script).ending.code == 0


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
@pytest.mark.parametrize("script", [MASKED, SET_BACK, MADE_AGAIN, CAPTURED, KINDS])
def test_both_back_ends_draw_alike(script, monkeypatch, tmp_path):
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(script)
    plan = plan_of(["python", "train.py"], steps=0, gpu="a100-40gb", torch="2.13")
    over, found = run_over_driver(plan, CUDA), simulate(plan)
    assert over.code == found.ending.code == 0
    peak = found.traced.prediction.peak
    assert (peak.allocated, peak.reserved) == (over.peaks.allocated, over.peaks.reserved)
