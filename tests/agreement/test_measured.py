"""A run that is measured over the stub driver reads in each phase what its estimate reads."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from tests.agreement.test_pairs import LLAMA, SETTINGS

PLANS = {
    "plain": {},
    "accumulated": {"grad_accum": 2, "precision": "amp-fp16", "max_grad_norm": 1.0},
    "accelerate": {"loop": "accelerate", "eval": 2},
}
"""None of them decides by what it reads from the GPU, where numbers are made up here."""


def measure_over_the_stub(settings):
    """In a fork of a process that has opened the stub driver."""
    from memcalc.engine import simulated_gpu
    from memcalc.estimation.question import look_up
    from memcalc.measure.runs.run import Options, measure

    question = look_up(make(settings))
    simulated_gpu.insert(question.gpu, question.target)
    simulated_gpu.check(question.target)
    measured = measure(question.plan, Options(device="cuda", steps=4))
    return [
        [one.step, one.phase.value, one.requested, one.allocated, one.reserved]
        for one in measured.phases
    ]


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one == "plain" else pytest.mark.nightly) for one in PLANS],
)
def test_a_run_is_measured_by_the_counters_that_its_estimate_reads(name, forked, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    settings = {"model": str(path), **SETTINGS, **PLANS[name]}
    measured = forked(measure_over_the_stub, settings)
    read = Answers().trace(make(settings)).trace.readings
    assert measured == [[r.step, r.phase.value, r.requested, r.allocated, r.reserved] for r in read]
