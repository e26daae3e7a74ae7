"""Training scripts of many kinds, against PyTorch's CUDA build over the stand-in driver."""

import importlib.util
import json

import pytest

from memcalc.script.simulate import plan_of, simulate
from tests.conftest import ROOT

RECORDED = json.loads((ROOT / "evidence/standin/scripts-torch2.14-cc90.json").read_text())
ALWAYS = (
    "amp_scaler",
    "ema_eval",
    "prefetch_stream",
    "clip_two_towers",
    "thread_prefetch",
)
"""Autocast and a scaler, copies, streams, attention; the rest at night."""
NEEDED = {
    "trl": "trl",
    "diffusers": "diffusers",
    "accelerate_no_trainer": "datasets",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "ignite": "ignite",
    "profiled": "tensorboard",
    "liger": "liger_kernel",
    "timm": "timm",
    "vision": "torchvision",
    "st_": "sentence_transformers",
    "pyg": "torch_geometric",
}


def cases():
    for name in RECORDED["scripts"]:
        needed = next((n for start, n in NEEDED.items() if name.startswith(start)), None)
        missing = needed is not None and importlib.util.find_spec(needed) is None
        marks = [pytest.mark.skipif(missing, reason=f"{needed} is not installed")]
        yield pytest.param(name, marks=marks if name in ALWAYS else [*marks, pytest.mark.nightly])


@pytest.fixture
def as_recorded(monkeypatch, tmp_path):
    """Over the driver there is no cuDNN."""
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    monkeypatch.chdir(tmp_path)


def peaks(name):
    plan = plan_of(
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
    monkeypatch.setenv("MEMCALC_READS", RECORDED["scripts"][name].get("reads", "zeros"))
    found, recorded = peaks(name), RECORDED["scripts"][name]
    if name.startswith("flash") and importlib.util.find_spec("flash_attn") is None:
        # By the stand-in: the same tensors, of packed calls in other blocks.
        assert found["requested"] == pytest.approx(recorded["requested"], rel=1e-6)
        assert found["allocated"] == pytest.approx(recorded["allocated"], rel=0.003)
        return
    assert found["allocated"] == recorded["allocated"]
    assert found["reserved"] == pytest.approx(recorded["reserved"], rel=0.03)
