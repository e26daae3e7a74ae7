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
        "Ctrl-C after the first run",
    ],
)
def test_no_fault_leaves_a_process_or_loses_a_run(name):
    result = faults.inject(NAMES.index(name), 1, 5.0)
    assert result["fault"] == name
    assert result["broken"] == []
