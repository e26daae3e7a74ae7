"""What is recorded on a machine with a GPU is ready to be run, though no test has one."""

import json
import pathlib
import subprocess
import sys
from pathlib import Path

import pytest

from memcalc.accuracy.compare import peak
from memcalc.catalog import models, plan
from memcalc.catalog.plan import disagreement
from memcalc.files.results import load
from tests.conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import on_gpu


def test_every_part_names_files_that_are_there(tmp_path):
    for name, part in on_gpu.parts(tmp_path).items():
        for command in filter(None, (part.command, part.compared)):
            files = [pathlib.Path(word) for word in command if word.endswith((".py", ".toml"))]
            assert all(file.exists() for file in files), name
            assert command[0] == sys.executable


def test_a_part_that_fails_and_one_that_never_ends_leave_the_next_its_time(tmp_path, capsys):
    python = sys.executable

    chosen = {
        "fails": on_gpu.Part(1.0, (python, "-c", "raise SystemExit(3)")),
        "sleeps": on_gpu.Part(0.001, (python, "-c", "import time; time.sleep(99)")),
        "works": on_gpu.Part(1.0, (python, "-c", "print('done')")),
    }
    on_gpu.record(tmp_path, chosen, 1, {})
    ended = json.loads((tmp_path / "parts.json").read_text())
    assert [one["code"] for one in ended.values()] == [3, None, 0]
    assert "done" in (tmp_path / "log.txt").read_text()


def test_a_part_that_nobody_knows_is_refused(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "on_gpu.py"), str(tmp_path), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such part: nothing; choose from doctor, context," in done.stderr


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
