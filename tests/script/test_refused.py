"""What a GPU refuses ends a simulated script in the same way, and what it takes runs."""

import json
import pathlib

from memcalc.script.simulate import plan_of, simulate

ROOT = pathlib.Path(__file__).parent.parent.parent
RECORDED = ROOT / "evidence" / "standin" / "refusals-torch2.13.json"


def test_calls_end_as_over_the_driver(parent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["python", str(ROOT / "benchmarks" / "refusals.py"), "found.json"]
    run = simulate(plan_of(command, gpu="a100-40gb", torch="2.13", steps=0), parent)
    assert run.ending.code == 0
    found = json.loads((tmp_path / "found.json").read_text())
    recorded = json.loads(RECORDED.read_text())
    assert len(found) > 340
    assert sum(map(bool, recorded.values())) > 210
    other = {call for call in found if bool(found[call]) != bool(recorded[call])}
    assert not other
    assert found["x.transpose(1, 2).view(-1)"].startswith("RuntimeError: view size")
    missing = {call: end for call, end in recorded.items() if end.startswith("NotImplemented")}
    assert len(missing) > 15
    assert not {call: found[call] for call in missing if found[call][:14] != "NotImplemented"}


BROADCAST = """
import torch
whole = torch.zeros(3, 4, dtype=torch.long, device="cuda")
whole.copy_(torch.arange(4))
assert whole.sum().item() == 18
whole[1] = torch.tensor(7)
whole[:, 2] = torch.tensor([1, 2, 3])
assert whole.tolist() == [[0, 1, 1, 3], [7, 7, 2, 7], [0, 1, 3, 3]]
mask = torch.zeros(4, 4, dtype=torch.bool, device="cuda")
mask.copy_(torch.tensor([[True], [False], [True], [True]]))
assert mask.sum().item() == 12
"""


def test_what_is_copied_along_other_dimensions_is_known_there(run):
    assert run(BROADCAST).ending.code == 0


LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_device("cuda")
data = TensorDataset(torch.ones(8, 2))
for batch, in DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator("cuda")):
    assert batch.is_cuda
try:
    next(iter(DataLoader(data, batch_size=4, shuffle=True)))
except RuntimeError as error:
    assert "Expected a 'cuda' device type for generator but found 'cpu'" in str(error)
else:
    raise AssertionError
"""


def test_an_order_is_drawn_where_the_generator_is(run):
    assert run(LOADER).ending.code == 0
