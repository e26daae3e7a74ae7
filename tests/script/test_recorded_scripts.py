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


def peaks(name):
    plan = make_plan(
        ["python", str(ROOT / "benchmarks" / "scripts" / f"{name}.py")],
        steps=0,
        gpu=RECORDED["gpu"],
        cudnn_attention=False,
    )
    known = RECORDED["runs"][name].get("reads", "zeros") == "known"
    found = simulate(plan, follows_values=known, uses_cudnn=False)  # The driver has no cuDNN.
    assert found.ending.code == 0
    phases = found.traced.prediction.phases
    return {
        rung: max(getattr(phase, rung) for phase in phases)
        for rung in ("requested", "allocated", "reserved")
    }


@pytest.mark.parametrize("name", cases())
def test_a_script_takes_what_it_took_over_the_driver(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, recorded = peaks(name), RECORDED["runs"][name]
    assert found["allocated"] == recorded["allocated"]
    assert found["reserved"] == pytest.approx(recorded["reserved"], rel=0.03)
