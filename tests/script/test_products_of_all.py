"""Gradients of products over a dimension, and of gradients that pick places, as over the driver."""

from pathlib import Path

import pytest

from memcalc.script.driver.run import run as run_over
from memcalc.script.simulate import plan_of
from tests.script.test_driver import CUDA

SCRIPT = """
import torch
wide = torch.ones(64, 300, device="cuda", requires_grad=True)
LEAVES = [wide]
CASES = {
    "half": lambda: wide.half().prod(1, dtype=torch.float).sum().backward(),
    "running": lambda: wide.half().cumprod(1, dtype=torch.float).sum().backward(),
    "product": lambda: wide.prod(1).sum().backward(),
}
"""
CASES = {"half": 290_304, "running": 481_280, "product": 175_104}


def test_the_gradient_of_a_product_is_of_its_own_type(peaks):
    assert peaks(SCRIPT, gpu="A100-40GB") == CASES


TAKES = """
import torch
def taken(chosen):
    rows = torch.rand(300, 64, device="cuda", requires_grad=True)
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    out = chosen(rows)
    (grad,) = torch.autograd.grad(out.square().sum(), rows, create_graph=True)
    grad.square().sum().backward()
    stats = torch.cuda.memory_stats()
    print("taken", stats["allocation.all.allocated"], stats["allocated_bytes.all.peak"])
places = torch.arange(900, device="cuda") % 300
columns = torch.zeros(300, 64, dtype=torch.long, device="cuda")
for chosen in (
    lambda rows: rows[places],
    lambda rows: rows.index_select(0, places),
    lambda rows: rows.gather(1, columns),
    # Rays of a radiance field: unknown factors are not zero.
    lambda rows: rows.cumprod(1),
):
    taken(chosen)
"""
TAKEN = [[33, 1_467_904], [21, 1_467_904], [21, 699_904], [44, 930_816]]


def _lines(capfd):
    lines = [line.split() for line in "".join(capfd.readouterr()).splitlines()]
    return [[int(value) for value in line[1:]] for line in lines if line[:1] == ["taken"]]


def test_a_gradient_of_a_gradient_writes_into_zeros_of_its_own(run, capfd):
    assert run(TAKES, gpu="A100-40GB", steps=0).ending.code == 0
    assert _lines(capfd) == TAKEN


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
def test_so_it_does_over_the_driver(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TAKES)
    assert run_over(plan_of(["python", "train.py"], gpu="A100-40GB", steps=0), CUDA).code == 0
    assert _lines(capfd) == TAKEN
