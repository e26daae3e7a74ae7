"""Operators of packages under autocast: their own Python code runs, other rules are said not to."""

import sys

import pytest

OPERATORS = """
import torch

library = torch.library.Library("brought", "DEF")
key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def autocast(input):
    with torch._C._ExcludeDispatchKeyGuard(key):
        return torch.ops.brought.doubled(input.float())


def doubled(input):
    return input * 2


for name in ("doubled", "cast_by_pytorch"):
    library.define(f"{name}(Tensor input) -> Tensor")
    library.impl(name, doubled, "CompositeExplicitAutograd")
    torch.library.register_autograd(f"brought::{name}", lambda ctx, grad: grad * 2)
library.impl("doubled", autocast, "AutocastCUDA")
torch.library.register_autocast("brought::cast_by_pytorch", "cuda", torch.float32)


class Net(torch.nn.Module):
    def __init__(self, called):
        super().__init__()
        self.called, self.head = getattr(torch.ops.brought, called), torch.nn.Linear(64, 64)

    def forward(self, x):
        return {"loss": self.called(self.head(x)).sum()}


def own():
    return Net("doubled")


def of_pytorch():
    return Net("cast_by_pytorch")
"""


def what_is_said(folder, model):
    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk

    sys.path.insert(0, folder)
    settings = {"batch": 1024, "inputs": ("x=float32[1024,64]",), "precision": "amp-fp16"}
    found, trace = Desk().estimate(make({"model": f"brought:{model}", "gpu": "t4", **settings}))
    named = ("doubled", "mul", "mul.Tensor")
    sizes = {storage.bytes for storage in trace.storages if storage.op in named}
    return sorted(sizes), [said for said in found.assumptions if "autocast of" in said]


@pytest.mark.parametrize(
    ("model", "bytes_of_a_value", "named"),
    [("own", 4, []), ("of_pytorch", 2, ["brought::cast_by_pytorch"])],
)
def test_an_operator_of_a_package_is_cast_by_its_own_code_or_named(
    forked, tmp_path, model, bytes_of_a_value, named
):
    (tmp_path / "brought.py").write_text(OPERATORS)
    sizes, said = forked(what_is_said, str(tmp_path), model)
    assert 1024 * 64 * bytes_of_a_value in sizes
    assert [text.split()[2] for text in said] == named
