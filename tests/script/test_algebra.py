"""Linear algebra whose shapes only CUDA's code knows, and sorting of what was chosen."""

import pytest

ORTHOGONAL = """
import torch
from torch.nn.utils.parametrizations import orthogonal
layer = orthogonal(torch.nn.Linear(96, 64).cuda(), orthogonal_map="{how}")
optimizer = torch.optim.Adam(layer.parameters())
for _ in range(2):
    layer(torch.ones(8, 96, device="cuda")).sum().backward()
    optimizer.step()
assert layer.weight.shape == (64, 96)
"""


@pytest.mark.parametrize("how", ["householder", "matrix_exp", "cayley"])
def test_an_orthogonal_layer_is_made_and_trained(run, how):
    assert run(ORTHOGONAL.format(how=how), gpu="t4").ending.code == 0


LARGEST = """
import torch
x = torch.randn(3, 18432, device="cuda")
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_stats()["requested_bytes.all.current"]
chosen = torch.topk(x, {count}, sorted={ordered})
taken = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
assert taken == {taken}, taken
"""


@pytest.mark.parametrize(
    ("count", "ordered", "taken"), [(5530, True, 942183), (5530, False, 199080)]
)
def test_the_largest_of_many_are_sorted_as_a_whole(run, count, ordered, taken):
    """As PyTorch 2.13 takes over the stand-in driver."""
    text = LARGEST.format(count=count, ordered=ordered, taken=taken)
    assert run(text, gpu="H100 SXM").ending.code == 0
