"""Runs that people measured on their own cards, and the suite that makes such files."""

from pathlib import Path

import pytest

from memcalc.accuracy.compare import peak
from memcalc.catalog import models, plan
from memcalc.catalog.plan import disagreement
from memcalc.files.results import load
from tests.conftest import ROOT

CARDS = sorted((ROOT / "evidence" / "cards").glob("*.json"))
ALLOWED = {"requested": 0.001, "allocated": 0.01}


def test_the_community_suite_is_found_by_its_name_and_holds_bundled_models_only():
    plans = plan.load(Path("community"))
    assert plans == plan.load(ROOT / "configs" / "suites" / "community.toml")
    assert len(plans) == 16
    assert all(models.find(plan.model).origin == "bundled" for plan in plans)
    assert all(disagreement(plan) is None for plan in plans)


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("community").write_text('[[run]]\nmodel = "gpt2"\n')
    assert [plan.model for plan in plan.load(Path("community"))] == ["gpt2"]


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_runs_on_cards_are_met(path):
    for run in load(path):
        if run.measurement is None or run.prediction is None:
            continue
        for rung, allowed in ALLOWED.items():
            found = peak(run.prediction, run.measurement, rung)
            assert found is None or abs(found.relative) <= allowed, (run.plan, rung)
