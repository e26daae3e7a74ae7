"""A run that is measured over the stub driver reads in each phase what its estimate reads."""

import json
import subprocess
import sys

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from tests.agreement.test_pairs import LLAMA, SETTINGS

MEASURES = """
import json, sys
from memcalc.engine import driver
driver.open_stub()
from memcalc.catalog.plan import make
from memcalc.engine import simulated_gpu
from memcalc.estimation.question import look_up
question = look_up(make(json.loads(sys.argv[1])))
simulated_gpu.insert(question.gpu, question.target)
simulated_gpu.check(question.target)
from memcalc.measure.runs.run import Options, measure
measured = measure(question.plan, Options(device="cuda", steps=4))
rungs = "requested", "allocated", "reserved"
print(json.dumps([
    [one.step, one.phase, *(getattr(one, rung) for rung in rungs)] for one in measured.phases
]))
"""
PLANS = {
    "plain": {},
    "accumulated": {"grad_accum": 2, "precision": "amp-fp16", "max_grad_norm": 1.0},
    "accelerate": {"loop": "accelerate", "eval": 2},
}
"""None of them decides by what it reads from the GPU, where numbers are made up here."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one == "plain" else pytest.mark.nightly) for one in PLANS],
)
def test_a_run_is_measured_by_the_counters_that_its_estimate_reads(name, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    settings = {"model": str(path), **SETTINGS, **PLANS[name]}
    done = subprocess.run(
        [sys.executable, "-c", MEASURES, json.dumps(settings)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    read = Answers().trace(make(settings)).trace.readings
    expected = [[r.step, r.phase.value, r.requested, r.allocated, r.reserved] for r in read]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
