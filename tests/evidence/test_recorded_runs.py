"""Recorded runs on one GPU against runs over the stub driver: a few by default, all at night.

Under another release of PyTorch than the recording's the peaks are only near; at night each runs
under its own.
"""

import pytest

from tests.evidence.judged import all_of, named, runs, sample

KINDS = (
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
RECORDINGS = [
    name
    for name in named(*(f"{start}-torch" for start in KINDS))
    if not name.endswith(("-ddp", "-fsdp2"))
]
FEW = {
    "runs-torch2.13-cc90": (0, 8, 30),
    "runs-optimizers-torch2.13-cc90": (0, 20),
    "loops-torch2.13-cc75": (0,),
    "quant-torch2.13-cc90": (19, 24),
    "flash-torch2.13-cc90": (0,),
}
"""Runs that are compared by default, by recording."""


@pytest.mark.parametrize("name", FEW)
def test_a_few_runs_are_met(forked, name):
    sample(forked, name, FEW[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", RECORDINGS)
def test_all_runs_are_equal_in_every_phase_on_every_rung(name):
    all_of(name)


def test_the_optimizer_state_that_was_recorded_is_the_registrys():
    from memcalc import registry
    from memcalc.catalog import inventory, models
    from memcalc.files.artifact import decode
    from memcalc.records.model import Place
    from memcalc.records.plan import Plan
    from memcalc.workload import tasks

    places = (Place.DEVICE, Place.HOST, Place.MANAGED)
    seen = 0
    for run in (run for name in named("runs-") for run in runs(name)):
        plan = decode(Plan, run["plan"])
        if plan.precision in ("bf16", "fp16") or plan.freeze or plan.lora:
            continue
        source = models.find(plan.model)
        tensors = inventory.load(source, tasks.choose(source, plan.task).name)
        if tensors is None:  # only the usual head's is shipped
            continue
        choice = registry.find(plan.optim, dict(plan.optim_args))
        state = registry.compute_state(choice, tensors.parameters, plan)
        assert [state.total(place) for place in places] == run["state"], plan
        seen += 1
    assert seen > 50
