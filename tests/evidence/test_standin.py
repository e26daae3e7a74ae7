"""Recorded runs against their estimates: PyTorch's CUDA code over the stand-in driver.

Every other run here, for time; every third of those with cuDNN. ``MEMCALC_EVERY_RUN=1`` takes them
all, as ``benchmarks/accuracy.py`` does for docs/accuracy.md.
"""

import json
import os
import pathlib
import runpy
import statistics

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
STANDIN = ROOT / "evidence" / "standin"
RECORDINGS = sorted(STANDIN.glob("runs-torch*.json"))
accuracy = runpy.run_path(str(ROOT / "benchmarks" / "accuracy.py"))

REQUESTED, ALLOCATED, RESERVED = 0.001, 0.002, 0.01


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: path.stem)
def rows(request):
    if os.environ.get("MEMCALC_EVERY_RUN"):
        return accuracy["compare"](request.param)
    every = 3 if request.param.stem.endswith("-cudnn") else 2
    # Recordings of the same suite give other runs.
    first = RECORDINGS.index(request.param) % every
    return accuracy["compare"](request.param, first=first, every=every)


def test_every_run_is_within_its_bound(rows):
    for row in rows:
        name = accuracy["label"](row.plan)
        assert abs(row.off["requested"]) <= REQUESTED, name
        assert abs(row.off["allocated"]) <= ALLOCATED, name
        assert abs(row.off["reserved"]) <= RESERVED, name


def test_nearly_every_run_is_equal_in_every_phase_on_every_rung(rows):
    unequal = [accuracy["label"](row.plan) for row in rows if not all(row.exact.values())]
    # One at most in a sample of few.
    assert len(unequal) <= max(1, 0.15 * len(rows)), unequal
    for rung in accuracy["RUNGS"]:
        assert statistics.median(abs(row.off[rung]) for row in rows) == 0


def test_recordings_cover_what_they_claim():
    runs = [run for path in RECORDINGS for run in json.loads(path.read_text())["runs"]]
    plans = [run["plan"] for run in runs]
    assert len(plans) >= 100
    assert len({plan["model"] for plan in plans}) >= 15
    assert {"fp32", "amp-fp16", "amp-bf16", "bf16", "fp16"} <= {p["precision"] for p in plans}
    assert {True, False} == {plan["checkpointing"] for plan in plans}
    assert {"plain", "trainer"} == {plan["loop"] for plan in plans}


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
