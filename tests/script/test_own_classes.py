"""Classes of tensors that a script brings stay with what is on the GPU, as MONAI's do there."""

from pathlib import Path

import pytest

from memcalc.script.driver.run import run as run_over
from memcalc.script.simulate import plan_of
from tests.script.test_driver import CUDA

SCRIPT = """
import torch
from torch.nn.attention.bias import causal_lower_right

class Plain(torch.Tensor):
    pass

class Noted(torch.Tensor):
    calls = 0

    def __new__(cls, data, note=None):
        return torch.as_tensor(data).as_subclass(cls)

    def __init__(self, data, note=None):
        self.note = note

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Noted.calls += 1
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Noted):
            noted = [arg for arg in args if isinstance(arg, Noted)]
            out.__dict__ = {"note": getattr(noted[0], "note", None)} if noted else {}
        return out

model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()).cuda()
for make in (Plain, Noted):
    for x in (make(torch.ones(8, 64)).cuda(), make(torch.ones(8, 64, device="cuda"))):
        y = model(x)
        assert type(x) is type(y) is make and isinstance(y, torch.Tensor), (type(x), type(y))
        y.square().mean().backward()
        host = y.detach().cpu()
        assert type(host) is type(host + 1) is make and y.sum().item() == 0
        assert type(torch.stack([x, x]).half()) is make and x.is_cuda
x = Noted(torch.ones(8, 64), note="first").cuda()
assert (x + 1).note == "first" and (x * 2)[0].is_cuda and x.shape == (8, 64)
assert Noted.calls > 20
leaf = torch.ones(4, device="cuda", requires_grad=True)
leaf.as_subclass(Plain).sum().backward()
assert leaf.grad.shape == (4,)

before = torch.cuda.memory_allocated()
as_another = x.as_subclass(Plain)
assert torch.cuda.memory_allocated() == before and as_another.data_ptr() == x.data_ptr()

q = torch.ones(1, 2, 64, 64, device="cuda", requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(
    q, q, q, attn_mask=causal_lower_right(64, 64)
).sum().backward()
"""


def test_a_tensor_keeps_its_class_on_the_gpu(run):
    assert run(SCRIPT, gpu="t4", steps=0).ending.code == 0


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
def test_so_it_does_over_the_driver(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert run_over(plan_of(["python", "train.py"], gpu="t4", steps=0), CUDA).code == 0
