"""Older releases of PyTorch, phase by phase, against their CUDA builds over the stand-in driver.

Recorded by benchmarks/record_older.py from what pip installs: CUDA 11.7 of 2.0.1 to 12.8 of 2.10.0.
"""

import json
from pathlib import Path

import pytest

from memcalc.script.simulate import plan_of, simulate

ROOT = Path(__file__).parents[2]
FILE = json.loads((ROOT / "evidence/standin/older-releases.json").read_text())
ALWAYS = {"2.0.1": ("attention", "operators", "optimizers", "vit"), "2.1.2": ("attention",)}


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
