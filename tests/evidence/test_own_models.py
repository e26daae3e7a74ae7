"""Models of one's own, recorded over the stand-in driver and estimated: equal in every phase."""

import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
RECORDING = ROOT / "evidence" / "standin" / "own-torch2.13-cc90.json"

accuracy = runpy.run_path(str(ROOT / "benchmarks" / "accuracy.py"))


@pytest.mark.nightly
def test_losses_and_layers_of_ones_own_are_met_in_every_phase_on_every_rung(monkeypatch):
    monkeypatch.chdir(ROOT)
    rows = accuracy["compare"](RECORDING)
    assert len(rows) >= 15
    for row in rows:
        assert all(row.exact.values()), (row.plan.model, row.plan.optim, row.off)
