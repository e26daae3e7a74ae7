"""Recorded runs of the real Trainer and of scripts around accelerate, against their estimates."""

import json
import statistics

import pytest

from tests.evidence.test_standin import STANDIN, accuracy

RECORDINGS = sorted(STANDIN.glob("loops-*.json"))
MEDIAN = {"requested": 0.001, "allocated": 0.001, "reserved": 0.005}
WORST = {"requested": 0.005, "allocated": 0.005, "reserved": 0.03}


@pytest.fixture(scope="module")
def rows():
    # Every eighteenth, from another place in each recording; benchmarks/accuracy.py takes them all.
    return [
        row
        for first, path in enumerate(RECORDINGS)
        for row in accuracy["compare"](path, first=3 + first, every=18)
    ]


def test_real_loops_are_met_within_the_bounds_that_are_promised(rows):
    assert {row.plan.loop for row in rows} == {"trainer", "accelerate"}
    for rung in accuracy["RUNGS"]:
        off = {accuracy["label"](row.plan): abs(row.off[rung]) for row in rows}
        assert statistics.median(off.values()) <= MEDIAN[rung], off
        assert max(off.values()) <= WORST[rung], off


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_real_trainer_keeps_embeddings_of_any_class_as_wide_as_is_said(every):
    rows = accuracy["compare"](STANDIN / "loops-torch2.13-cc75.json", every=every)
    for row in rows:
        assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)
    assert len({row.plan.model for row in rows}) >= 4 // every


def test_recordings_of_loops_cover_what_they_claim():
    runs = [run["plan"] for path in RECORDINGS for run in json.loads(path.read_text())["runs"]]
    assert len(runs) >= 40
    trainer = {run["optim"] for run in runs if run["loop"] == "trainer"}
    assert {"adamw_torch", "adamw_torch_fused", "adafactor", "adamw_bnb_8bit", "sgd"} <= trainer
    for loop in ("trainer", "accelerate"):
        of_loop = [run for run in runs if run["loop"] == loop]
        assert {"fp32", "amp-bf16", "amp-fp16", "bf16"} <= {run["precision"] for run in of_loop}
        assert any(run["grad_accum"] > 1 for run in of_loop)
        for setting in ("eval", "lora", "checkpointing"):
            assert any(run[setting] for run in of_loop), (loop, setting)
