"""``type(x) is torch.Tensor`` holds for a tensor of the GPU, as it does on one."""

import importlib
import sys

from memcalc.script import exact_types
from memcalc.script.patches import Patches
from memcalc.script.simulate import plan_of, simulate

ASKS = """
import torch

def kind(x):
    found = type(x)
    if found is torch.Tensor:
        return "tensor"
    return {torch.nn.Parameter: "parameter"}.get(found, found.__name__)
"""
SCRIPT = """
import torch
from beside import kind

on_gpu = torch.ones(3, device="cuda")
layer = torch.nn.Linear(3, 3).cuda()
for ask in (kind, lambda x: "tensor" if type(x) == torch.Tensor else type(x).__name__):
    assert ask(on_gpu) == ask(layer(on_gpu)) == ask(torch.ones(3)) == "tensor"
    assert ask(layer.weight).lower() == "parameter"
    assert ask(3) == "int" and ask(layer) == "Linear"

# It is Python's own in all else.
class Meta(type):
    def __new__(cls, name, bases, given):
        return super().__new__(cls, name, bases, {**given, "marked": True})
class Marked(metaclass=Meta):
    pass
assert Marked.marked and type(Marked) is Meta and isinstance(Marked, type)
assert isinstance(int, type) and not isinstance(3, type) and issubclass(Meta, type)
Made = type("Made", (Marked,), {"x": 1})
assert Made.x == 1 and Made.marked and type(Made()) is Made
def annotated(x: type[int]) -> None: ...
"""


def test_a_tensor_of_the_gpu_is_exactly_a_tensor(run, tmp_path):
    (tmp_path / "beside.py").write_text(ASKS)
    assert run(SCRIPT, gpu="t4", steps=0).ending.code == 0


def test_so_it_is_in_a_module_that_is_run(parent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text(ASKS)
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "__main__.py").write_text(SCRIPT)
    plan = plan_of(["python", "-m", "whole"], gpu="t4", steps=0)
    assert simulate(plan, parent).ending.code == 0


def test_a_module_has_its_own_names_back(tmp_path, monkeypatch):
    (tmp_path / "asking.py").write_text(ASKS)
    (tmp_path / "naming.py").write_text(f"{ASKS}\ntype = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    patches = Patches()
    exact_types.install(patches)
    try:
        asking, naming = map(importlib.import_module, ("asking", "naming"))
        assert asking.type is exact_types.type_of
    finally:
        patches.undo()
        for name in ("asking", "naming"):
            sys.modules.pop(name, None)
    assert "type" not in vars(asking)
    assert naming.type == 3
