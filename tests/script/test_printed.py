"""A tensor of the GPU is printed as one of the GPU, and what PyTorch makes for that is counted."""

from pathlib import Path

import pytest

from memcalc.script.driver.run import run as run_over
from memcalc.script.simulate import plan_of
from tests.script.test_driver import CUDA

SCRIPT = """
import torch
gpu = "device='cuda:0'"
assert repr(torch.arange(3, device="cuda")) == f"tensor([0, 1, 2], {gpu})"
assert str({"loss": torch.tensor(2.5).cuda()}) == "{'loss': tensor(2.5000, " + gpu + ")}"
assert f"{torch.zeros(2).half().cuda()}" == f"tensor([0., 0.], {gpu}, dtype=torch.float16)"
assert repr(torch.empty(0, 2, device="cuda")) == f"tensor([], {gpu}, size=(0, 2))"
assert repr(torch.ones(1, device="cuda") > 0) == f"tensor([True], {gpu})"
model = torch.nn.Linear(2, 1).cuda()
loss = model(torch.zeros(1, 2, device="cuda")).sum()
assert repr(loss) == f"tensor(0., {gpu}, grad_fn=<SumBackward0>)"
begins = f"Parameter containing:\\ntensor([[0., 0.]], {gpu}, requires_grad=True)"
assert repr(model.weight) == begins, repr(model.weight)
assert repr(torch.zeros(999, 999, device="cuda")).count("...") == 7

torch.cuda.reset_accumulated_memory_stats()
repr(loss)
assert torch.cuda.memory_stats()["allocation.all.allocated"] == 9
torch.cuda.memory._set_memory_metadata("here")
assert torch.cuda.memory._get_memory_metadata() == "here"
assert torch.cuda.memory_stats()["max_split_size"] == -1
"""


def test_a_tensor_is_printed_with_its_numbers(run):
    assert run(SCRIPT, gpu="t4", steps=0).ending.code == 0


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
def test_so_it_is_over_the_driver(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert run_over(plan_of(["python", "train.py"], gpu="t4", steps=0), CUDA).code == 0
