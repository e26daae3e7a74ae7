"""Older releases of PyTorch, phase by phase, against their CUDA builds over the stand-in driver.

Recorded by benchmarks/record_older.py from what pip installs: CUDA 11.7 of 2.0.1 to 12.8 of 2.10.0.
"""

import json
from pathlib import Path

import pytest
import torch

import memcalc
from memcalc.script.simulate import plan_of, simulate

ROOT = Path(__file__).parents[2]
FILE = json.loads((ROOT / "evidence/standin/older-releases.json").read_text())
ALWAYS = {"2.0.1": ("attention", "operators"), "2.1.2": ("attention",)}


def cases():
    for release, scripts in FILE["recorded"].items():
        for name in scripts:
            often = name in ALWAYS.get(release, ())
            yield pytest.param(release, name, marks=[] if often else [pytest.mark.nightly])


def phases_of(text):
    lines = [line.split() for line in text.splitlines() if line.startswith("phase ")]
    return {name: [int(number) for number in numbers] for _, name, *numbers in lines}


@pytest.mark.parametrize(("release", "name"), cases())
def test_each_phase_takes_what_this_release_took(release, name, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    monkeypatch.chdir(tmp_path)
    script = ROOT / "benchmarks" / "older" / f"{name}.py"
    version = release.rpartition(".")[0]
    plan = plan_of(["python", str(script)], steps=0, gpu=FILE["gpu"], torch=version)
    assert simulate(plan).ending.code == 0
    assert phases_of("".join(capfd.readouterr())) == FILE["recorded"][release][name]


@pytest.mark.parametrize(
    ("older", "newer", "more"), [("2.0", "2.1", 28_714_824), ("2.1", "2.2", 0)]
)
def test_an_estimate_knows_what_a_release_takes_as_a_script_does(older, newer, more):
    """Three encoder layers in fp32 with AdamW: 142,106,324 bytes in 2.0.1, 113,391,500 in 2.1.2."""

    def peak(version):
        layer = torch.nn.TransformerEncoderLayer(
            192, 3, 768, 0.1, batch_first=True, norm_first=True
        )
        model = torch.nn.Sequential(
            torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
            torch.nn.Linear(192, 192),
        )
        given = torch.zeros(8, 197, 192)
        return memcalc.estimate(
            model,
            optimizer=torch.optim.AdamW,
            loss=torch.nn.functional.mse_loss,
            inputs=given,
            targets=given,
            gpu="a100-40gb",
            torch=version,
        ).peak.requested

    assert peak(older) - peak(newer) == more
