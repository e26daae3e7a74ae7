"""A few of the faults that benchmarks/faults.py injects by the hundred."""

import sys

import pytest

from tests.measure.driver import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import faults

NAMES = [name for name, *_ in faults.FAULTS]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("the run is killed", marks=pytest.mark.nightly),
        pytest.param("the process that forks the runs is killed", marks=pytest.mark.nightly),
        pytest.param("Ctrl-C after the first run", marks=pytest.mark.nightly),
    ],
)
def test_no_fault_leaves_a_process_or_loses_a_run(name):
    result = faults.inject(NAMES.index(name), 1, 5.0)
    assert result["fault"] == name
    assert result["broken"] == []


BAD = {case.name: case for case in faults.bad_inputs.CASES}
SAMPLE = (
    "show opens memo.pickle",
    "init starts from bomb.yaml",
    "written to link.txt",
    "a result in no/such/out.txt",
    "list: stdout is full",
    "estimate: deleted folder",
)


@pytest.mark.parametrize(
    "name",
    [*SAMPLE, *(pytest.param(n, marks=pytest.mark.nightly) for n in BAD if n not in SAMPLE)],
)
def test_no_bad_input_breaks_a_promise(name):
    assert faults.give(0, BAD[name])["broken"] == []
