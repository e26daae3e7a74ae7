"""Training scripts of many kinds, against PyTorch's CUDA build over the stand-in driver."""

import json

import pytest

from memcalc.script.simulate import make_plan, simulate
from tests.conftest import ROOT

RECORDED = json.loads((ROOT / "evidence/standin/torch2.14.json").read_text())[
    "scripts-torch2.14-cc90"
]
ALWAYS = ("amp_scaler", "ema_eval", "prefetch_stream")
"""Autocast and a scaler, copies, streams; the rest at night."""


def cases():
    for name in RECORDED["runs"]:
        yield pytest.param(name, marks=() if name in ALWAYS else pytest.mark.nightly)


@pytest.fixture
def as_recorded(monkeypatch, tmp_path):
    """Over the driver there is no cuDNN."""
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    monkeypatch.chdir(tmp_path)


def peaks(name):
    plan = make_plan(
        ["python", str(ROOT / "benchmarks" / "scripts" / f"{name}.py")],
        steps=0,
        gpu=RECORDED["gpu"],
        cudnn_attention=False,
    )
    found = simulate(plan)
    assert found.ending.code == 0
    phases = found.traced.prediction.phases
    return {
        rung: max(getattr(phase, rung) for phase in phases)
        for rung in ("requested", "allocated", "reserved")
    }


@pytest.mark.parametrize("name", cases())
def test_a_script_takes_what_it_took_over_the_driver(as_recorded, name, monkeypatch):
    monkeypatch.setenv("MEMCALC_READS", RECORDED["runs"][name].get("reads", "zeros"))
    found, recorded = peaks(name), RECORDED["runs"][name]
    assert found["allocated"] == recorded["allocated"]
    assert found["reserved"] == pytest.approx(recorded["reserved"], rel=0.03)
