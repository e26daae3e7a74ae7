"""What products leave on the GPU, by the PyTorch that runs."""

import pytest

WITH_A_BIAS = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
x = torch.ones(32, 64, device="cuda")
x @ layer.weight
before = torch.cuda.memory_allocated()
out = layer(x)
kept = torch.cuda.memory_allocated() - before - out.numel() * 4
assert kept == {kept}, kept
peak = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
assert peak == {given_back}, peak
"""


@pytest.mark.parametrize(("torch", "kept"), [("2.6", 0), ("2.11", 1 << 20)])
def test_the_workspace_of_a_product_with_a_bias_goes_back_before_2_7(run, torch, kept):
    text = WITH_A_BIAS.format(kept=kept, given_back=(1 << 20) - kept)
    assert run(text, gpu="a100-80gb", torch=torch).ending.code == 0
