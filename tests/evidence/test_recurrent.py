"""Models with recurrent layers, recorded over the stand-in driver with cuDNN's own sizes."""

import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
RECORDINGS = sorted((ROOT / "evidence" / "standin").glob("recurrent-*.json"))

accuracy = runpy.run_path(str(ROOT / "benchmarks" / "accuracy.py"))


def met(path, **which):
    rows = accuracy["compare"](path, **which)
    for row in rows:
        assert all(row.exact.values()), (row.plan.model, row.plan.precision, row.off)
    return len(rows)


def test_a_few_are_met_in_every_phase(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert met(RECORDINGS[-1], first=1, every=8) >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_all_are_met_in_every_phase(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert met(path) >= 17
