"""What a script sets so that its results are the same each time, and what that takes."""

import pytest

from memcalc.kernels import blas

WORKSPACE = """
import os
{set}
import torch
x = torch.ones(64, 64, device="cuda")
before = torch.cuda.memory_allocated()
y = x @ x
assert torch.cuda.memory_allocated() - before == {bytes} + 64 * 64 * 4
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
y = x @ x
assert torch.cuda.memory_allocated() - before == {bytes} + 64 * 64 * 4
"""
PUT = """
import torch
rows, places = torch.zeros(1000, 8, device="cuda"), torch.arange(600).cuda()
values = torch.ones(600, 8, device="cuda")

def peak():
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    rows[places] = values
    return torch.cuda.max_memory_allocated() - before

assert peak() == 0
torch.use_deterministic_algorithms(True)
# Positions, sorted ones, their order and its numbers, each of eight bytes.
assert peak() >= 4 * 600 * 8
"""


@pytest.mark.parametrize(
    ("text", "size"),
    [(":4096:8", 32 << 20), (":16:8", 128 << 10), (":4096:2:16:8", 8_519_680), (":0:0", 0)],
)
def test_the_size_that_the_environment_asks_for(text, size):
    assert blas.configured(text) == size


def test_what_says_nothing_leaves_the_default():
    assert blas.configured("") is None
    assert blas.configured("4096") is None


def test_a_script_sets_it_before_its_first_product(run):
    setting = 'os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"'
    script = WORKSPACE.replace("{set}", setting).replace("{bytes}", str(128 << 10))
    assert run(script).ending.code == 0


def test_places_are_sorted_where_results_shall_be_the_same(run):
    assert run(PUT).ending.code == 0
