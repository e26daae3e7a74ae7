"""Recorded runs against their estimates: PyTorch's CUDA code over the stand-in driver.

A sample by default, chosen so that its settings meet in as many pairs as possible; all of them at
night, as ``benchmarks/accuracy.py`` takes them for docs/accuracy.md.
"""

import json
import pathlib
import runpy
import statistics

import pytest

from tests.evidence.sample import RECORDINGS, STANDIN, pairwise

ROOT = pathlib.Path(__file__).parent.parent.parent
OPTIMIZERS = [path for path in RECORDINGS if "-optimizers-" in path.stem]
MODELS = [path for path in RECORDINGS if path not in OPTIMIZERS]
REQUESTED, ALLOCATED, RESERVED = 0.001, 0.002, 0.01

accuracy = runpy.run_path(str(ROOT / "benchmarks" / "accuracy.py"))


@pytest.mark.parametrize(
    ("path", "index"), pairwise(4), ids=lambda value: getattr(value, "stem", value)
)
def test_a_run_of_the_sample_is_equal_in_every_phase_on_every_rung(path, index):
    (row,) = accuracy["compare"](path, first=index, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_run_is_within_its_bound_and_nearly_every_one_is_equal(path):
    rows = accuracy["compare"](path)
    for row in rows:
        name = accuracy["label"](row.plan)
        assert abs(row.off["requested"]) <= REQUESTED, name
        assert abs(row.off["allocated"]) <= ALLOCATED, name
        assert abs(row.off["reserved"]) <= RESERVED, name
    unequal = [accuracy["label"](row.plan) for row in rows if not all(row.exact.values())]
    # One at most in a sample of few.
    assert len(unequal) <= max(1, 0.15 * len(rows)), unequal
    for rung in accuracy["RUNGS"]:
        assert statistics.median(abs(row.off[rung]) for row in rows) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("path", OPTIMIZERS, ids=lambda path: path.stem)
def test_every_run_of_an_optimizer_with_kernels_of_its_own_is_equal(path):
    for row in accuracy["compare"](path):
        assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


def test_recordings_of_optimizers_cover_every_family_that_runs_on_a_gpu():
    runs = [run["plan"] for path in OPTIMIZERS for run in json.loads(path.read_text())["runs"]]
    optimizers = {plan["optim"] for plan in runs}
    assert {"memcalc.adamw8bit", "memcalc.adam8bit", "memcalc.adamw_bf16"} <= optimizers
    for family in ("adamw", "lion", "ademamix", "lamb", "lars", "sgd", "rmsprop", "adagrad"):
        assert any(family in name for name in optimizers), family
    assert any("paged" in name for name in optimizers)
    for setting in ("resume", "optim_in_backward", "checkpointing"):
        assert {plan[setting] for plan in runs} == {True, False}, setting


def test_recordings_cover_what_they_claim():
    runs = [run for path in MODELS for run in json.loads(path.read_text())["runs"]]
    plans = [run["plan"] for run in runs]
    assert len(plans) >= 100
    assert len({plan["model"] for plan in plans}) >= 15
    assert {"fp32", "amp-fp16", "amp-bf16", "bf16", "fp16"} <= {p["precision"] for p in plans}
    assert {True, False} == {plan["checkpointing"] for plan in plans}
    # The Trainer and accelerate are recorded apart, by their own code.
    assert {"plain"} == {plan["loop"] for plan in plans}


def test_the_optimizer_state_that_was_recorded_is_the_registrys():
    from memcalc import registry
    from memcalc.catalog import inventory, models
    from memcalc.files.artifact import decode
    from memcalc.records.model import Place
    from memcalc.records.plan import Plan
    from memcalc.workload import tasks

    seen = 0
    for path in STANDIN.glob("runs-*.json"):
        for run in json.loads(path.read_text())["runs"]:
            plan = run["plan"]
            if plan["precision"] in ("bf16", "fp16") or plan["freeze"] or plan["lora"]:
                continue
            source = models.find(plan["model"])
            tensors = inventory.load(source, tasks.choose(source, plan["task"]).name)
            if tensors is None:  # only the usual head's is shipped
                continue
            choice = registry.find(plan["optim"], dict(plan["optim_args"]))
            state = registry.state_of(choice, tensors.parameters, decode(Plan, plan))
            for place in Place:
                assert state.total(place) == run["state"][place.value], plan
            seen += 1
    assert seen > 50
