"""Real runs of several processes over gloo, against their estimates."""

import json
import sys

import pytest

from memcalc.catalog import models
from memcalc.files.artifact import decode
from memcalc.files.results import Run
from memcalc.records.measurement import steady_peak
from tests.measure.driver import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import rank_faults

NARROW = {
    "gpt2": {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000},
    "meta-llama/Llama-3.2-1B": {
        "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64,
        "vocab_size": 1000, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
CASES = [
    ("gpt2", "fsdp2", 2),
    ("gpt2", "ddp", 2),
    ("gpt2", "zero1", 2),
    ("meta-llama/Llama-3.2-1B", "fsdp2", 3),
    ("meta-llama/Llama-3.2-1B", "fsdp1", 2),
    ("meta-llama/Llama-3.2-1B", "tp=2", 2),
    ("meta-llama/Llama-3.2-1B", "hsdp=2x2", 4),
    ("meta-llama/Llama-3.2-1B", "ddp", 2),
]
WITHIN = 0.001
STEPS = 6


def quiet_peak(one):
    """The peak of steps in which no thread of gloo was late, bytes.

    After ``wait`` gloo's own thread still holds a collective's tensors until it has its lock again
    (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, ``runLoop``, 2.13): on a busy machine for up
    to 30 ms, in one of some hundred calls, and the step goes on meanwhile.
    """
    lowest = {}
    for reading in one.measurement.phases:
        if reading.step:
            known = lowest.get(reading.phase, reading.requested)
            lowest[reading.phase] = min(known, reading.requested)
    return max(lowest.values())


def measured(memcalc, tmp_path, model, *options):
    config = {**models.find(model).config, **NARROW[model]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = memcalc(
        "measure", "config.json", "--batch", "2", "--seq", "64", "--device", "cpu",
        "--steps", str(STEPS), "-o", "out.json", *options,
    )  # fmt: skip
    (run,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    return done, decode(Run, run)


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "layout", "world"), CASES)
def test_the_peak_of_each_rank_is_what_its_estimate_says(memcalc, tmp_path, model, layout, world):
    spread = ("--devices", str(world), "--parallel", layout)
    done, run = measured(memcalc, tmp_path, model, *spread)
    assert done.returncode == 0, done.stderr
    assert [one.plan.rank for one in run.ranks] == list(range(world))
    for one in run.ranks:
        real = quiet_peak(one)
        assert abs(one.prediction.peak.requested - real) <= WITHIN * real
        assert one.prediction.gradients == one.measurement.gradients
        assert one.prediction.components["weights"] == one.measurement.weights
    peaks = [steady_peak(one.measurement, "requested") for one in run.ranks]
    assert steady_peak(run.measurement, "requested") == max(peaks)
    assert f"of {world} processes" in done.stdout


def test_a_plan_that_cannot_be_spread_is_refused_before_anything_starts(memcalc):
    done = memcalc("measure", "gpt2", "--device", "cpu", "--devices", "3", "--parallel", "tp=2")
    assert done.returncode == 2
    assert "product must be" in done.stderr


FAULTS = {fault.name: fault for fault in rank_faults.FAULTS}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_a_rank_that_fails_is_named_and_nothing_is_lost(name):
    assert rank_faults.inject(FAULTS[name], 2)["broken"] == []
