"""Scripts that go wrong leave nothing behind; a sample by default, all of them at night."""

import runpy
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "script_faults.py"
SAMPLE = (
    *("raises", "crashes", "fails in backward", "saves over its data", "closes standard output"),
    *("code in place of a file", "something to read"),
)


def test_a_sample_of_scripts_that_go_wrong_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runpy.run_path(str(BENCHMARK))["main"](*SAMPLE) == 0


@pytest.mark.nightly
def test_no_script_that_goes_wrong_leaves_anything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Limits of an environment are not those of a process that was there before.
    monkeypatch.setenv("MEMCALC_WARM", "")
    assert runpy.run_path(str(BENCHMARK))["main"]() == 0
