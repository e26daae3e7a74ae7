"""``memcalc.simulate`` and ``memcalc.estimate`` of live objects, sent to the engine's process."""

import os
import sys

import pytest
import torch

import memcalc
from memcalc.errors import EstimateError, UsageError
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import Component

pytest.importorskip("cloudpickle")
WEIGHTS = 4 * (64 * 32 + 32)


def train(steps=3):
    model = torch.nn.Linear(64, 32).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("peak", torch.cuda.max_memory_allocated(), torch.cuda.get_device_name())


def test_a_block_runs_on_a_gpu_of_another_process(capsys):
    with memcalc.simulate(gpu="t4") as run:
        train()
    assert capsys.readouterr().out == f"peak {run.peak.allocated} Tesla T4\n"
    assert run.prediction.components[Component.WEIGHTS] == WEIGHTS
    assert not torch.cuda.is_available()


NESTED = """
import memcalc, torch
torch.zeros(8, device="cuda")
with memcalc.simulate(gpu="t4") as run:
    torch.zeros(100, device="cuda")
assert run.peak.requested == 400
"""


@pytest.mark.nightly
def test_a_simulated_script_may_simulate_a_block(run):
    assert run(NESTED).ending.code == 0


def test_what_a_block_raises_is_raised_here():
    with pytest.raises(KeyError, match="lost"), memcalc.simulate() as run:
        {}[torch.zeros(100, device="cuda") is None or "lost"]
    assert run.peak.requested == 400


def test_a_block_that_cannot_be_sent_is_told():
    opened = (one for one in range(3))
    with (
        pytest.raises(EstimateError, match="opened cannot be sent"),
        memcalc.simulate(),
    ):
        torch.zeros(next(opened), device="cuda")


def test_the_module_that_is_asked_about_stays_as_it_is():
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    before = [p.detach().clone() for p in model.parameters()]
    found = memcalc.estimate(
        model,
        optimizer=optimizer,
        loss=torch.nn.functional.mse_loss,
        inputs=torch.randn(8, 64),
        targets=torch.randn(8, 32),
        gpu="t4",
    )
    assert found.components[Component.WEIGHTS] == WEIGHTS
    assert found.components[Component.OPTIMIZER_STATE] == 2 * WEIGHTS
    assert found.plan.command == "Linear"
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"loss": torch.sum}, UsageError, "Give inputs"),
        ({"inputs": torch.ones(2, 4)}, UsageError, "returns no loss"),
        ({"inputs": torch.ones(2, 5), "loss": torch.sum}, EstimateError, "RuntimeError: "),
        ({"inputs": torch.ones(2, 4), "optim": "adamw"}, UsageError, "optim"),
        ({"input": torch.ones(2, 4)}, UsageError, "did you mean inputs"),
    ],
)
def test_what_cannot_be_asked_of_a_module_is_told(given, error, match):
    with pytest.raises(error, match=match):
        memcalc.estimate(torch.nn.Linear(4, 4), **given)


class Leaves(torch.nn.Module):
    def __init__(self, leave):
        super().__init__()
        self.layer, self.leave = torch.nn.Linear(64, 64), leave

    def forward(self, rows):
        self.leave(0)
        return self.layer(rows).sum()


@pytest.mark.parametrize("leave", [os._exit, sys.exit])
def test_a_module_that_leaves_the_process_is_an_error(leave):
    with pytest.raises(EstimateError, match=r"called (os\._exit|sys\.exit)\(0\)"):
        memcalc.estimate(Leaves(leave), inputs=torch.zeros(8, 64), gpu="t4")


def test_a_block_that_leaves_the_process_has_no_verdict():
    def leave():
        torch.zeros(100, device="cuda")
        os._exit(0)

    with pytest.raises(EstimateError, match=r"os\._exit\(0\)"), memcalc.simulate(gpu="t4") as run:
        leave()
    assert run.prediction.fit is None
    assert "until then" in run.prediction.unknown["fit"]


def test_a_block_that_runs_out_of_memory_does_not_fit():
    def fill():
        return [torch.zeros(1 << power, device="cuda") for power in (20, 33)]

    with pytest.raises(torch.OutOfMemoryError), memcalc.simulate(gpu="t4") as run:
        fill()
    assert run.prediction.fit.verdict is FitVerdict.DOES_NOT_FIT


def test_the_files_that_a_block_writes_over_stay_as_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.txt").write_text("old")
    with memcalc.simulate(gpu="t4") as run:
        torch.zeros(100, device="cuda")
        os.remove("old.txt")
    assert (tmp_path / "old.txt").read_text() == "old"
    assert any("old.txt" in one for one in run.prediction.assumptions)
