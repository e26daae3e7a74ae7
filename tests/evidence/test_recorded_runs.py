"""Recorded runs on one GPU against runs over the stub driver: a few by default, all at night.

Under another release of PyTorch than the recording's the peaks are only near; at night each runs
under its own.
"""

import json

import pytest

from tests.evidence.judged import STANDIN, all_of, sample

FILES = (
    "runs",
    "runs-optimizers",
    "loops",
    "quant",
    "newest",
    "families",
    "own",
    "recurrent",
    "torchao",
    "liger",
    "flash",
)
RECORDINGS = sorted(
    path
    for name in FILES
    for path in STANDIN.glob(f"{name}-torch*.json")
    if "-ddp" not in path.stem and "-fsdp2" not in path.stem and "decode" not in path.stem
)
FEW = {
    "runs-torch2.13-cc90": (0, 8, 30),
    "runs-optimizers-torch2.13-cc90": (0, 20),
    "loops-torch2.13-cc75": (0,),
    "quant-torch2.13-cc90": (0, 3),
    "flash-torch2.13-cc90": (0,),
}
"""Runs that are compared by default, by recording."""


@pytest.mark.parametrize("name", FEW)
def test_a_few_runs_are_met(forked, name):
    sample(forked, STANDIN / f"{name}.json", FEW[name])


@pytest.mark.nightly
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_all_runs_are_equal_in_every_phase_on_every_rung(path):
    all_of(path)


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
