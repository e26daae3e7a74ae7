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


CASES = {
    "scatter": 1646080,
    "one index for all": 208896,
    "a mean": 1958400,
    "gather": 1767424,
    "slices": 387072,
    "copies": 290816,
    "sort": 3091456,
    "padding": 588288,
    "attention": 12877312,
}
"""Bytes over the stand-in driver of an A100 (2.13)."""
SORTED = """
import torch
import torch.nn.functional as F
torch.backends.cudnn.enabled = False
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
def made(*shape, **how):
    return torch.ones(*shape, device="cuda", **how)
rows, wide = made(60, 800, requires_grad=True), made(60, 500)
places, few = torch.arange(500).cuda().expand(60, 500).contiguous(), torch.arange(30).cuda()
image = made(4, 16, 24, 24, requires_grad=True)
heads = made(2, 4, 300, 64, dtype=torch.half, requires_grad=True)
CASES = {
    "scatter": lambda: rows.detach().scatter(1, places, wide),
    "one index for all": lambda: rows.detach().scatter(1, places[:1].expand(60, 500), wide),
    "a mean": lambda: rows.detach().scatter_reduce(1, places, wide, "mean"),
    "gather": lambda: rows.gather(1, places).sum().backward(),
    "slices": lambda: rows.detach().index_add(0, few, made(30, 800)),
    "copies": lambda: rows.detach().index_copy(0, few, made(30, 800)),
    "sort": lambda: rows.sort(1)[0].sum().backward(),
    "padding": lambda: F.pad(image, (2, 2, 3, 3), mode="replicate").sum().backward(),
    "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads).sum().backward(),
}
LEAVES = rows, image, heads
"""


@pytest.mark.pinned
def test_what_comes_into_places_and_attention_take_what_they_take_then(peaks, monkeypatch):
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    assert peaks(SORTED, gpu="A100-80GB") == CASES
