"""What a file names is never imported, called or run for it."""

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from memcalc.estimation.question import code_in
from memcalc.files import artifact
from memcalc.files.results import Run, save
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan

EVIL = "import pathlib; pathlib.Path({!r}).touch()\ndef build(): raise SystemExit(0)\n"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported, by whichever process."""
    mark = tmp_path / "imported"
    (tmp_path / "evil_module.py").write_text(EVIL.format(str(mark)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return mark


def _files(prediction):
    """A result of each kind whose plan names code."""
    plan = replace(prediction.plan, model="evil_module:build")
    named = replace(prediction, plan=plan)
    body = {"schema": 1, "kind": "prediction", "record": artifact.encode(named)}
    with open("named.json", "w") as file:
        json.dump(body, file)
    measured = Measurement(
        plan=plan, device="T4", head="", seq=None, parameters=1, weights=1, gradients=1,
        state=None, phases=(), seconds_per_step=None, samples_per_second=None,
    )  # fmt: skip
    optim = replace(plan, model="gpt2", optim="evil_module.build")
    runs = [Run(plan=p, measurement=replace(measured, plan=p)) for p in (plan, optim)]
    save(Path("measured.json"), runs)


def test_no_verb_runs_the_code_that_a_result_names(memcalc, evil, traced):
    _files(traced.prediction)
    compared = memcalc("compare", "measured.json")
    assert compared.returncode == 0, compared.stderr
    assert "no estimate of evil_module:build" in compared.stderr
    assert "no estimate of evil_module.build" in compared.stderr
    page = memcalc("report", "named.json", "-o", "page.html")
    assert page.returncode == 0, page.stderr
    with open("page.html") as file:
        assert "evil_module:build is Python code, and a file does not run code" in file.read()
    drawn = memcalc("report", "named.json", "-o", "x.svg")
    assert (drawn.returncode, "There is no timeline" in drawn.stderr) == (2, True)
    snapshot = memcalc("report", "named.json", "-o", "x.pickle")
    assert (snapshot.returncode, "which is code" in snapshot.stderr) == (2, True)
    assert memcalc("show", "named.json").returncode == 0
    assert not evil.exists()
    assert not os.path.exists("x.svg")


def test_a_training_configuration_cannot_name_code_either(memcalc, evil):
    with open("train.yaml", "w") as file:
        file.write("base_model: evil_module:build\nmicro_batch_size: 1\noptimizer: 'os:system'\n")
    done = memcalc("init", "--from", "train.yaml")
    assert (done.returncode, "names no model" in done.stderr) == (2, True)
    assert not evil.exists()


@pytest.mark.parametrize(
    ("model", "optim", "code"),
    [
        ("gpt2", "adamw", None),
        ("gpt2", "memcalc.adamw8bit", None),
        ("gpt2", "no-such-optimizer", None),
        ("gpt2", "mine.MyOptimizer", "mine.MyOptimizer"),
        ("gpt2", "mine:MyOptimizer", "mine:MyOptimizer"),
        ("mine:build", "adamw", "mine:build"),
        ("./mine.py:build", "adamw", "./mine.py:build"),
    ],
)
def test_code_is_told_from_names_that_memcalc_knows(model, optim, code):
    assert code_in(Plan(model=model, optim=optim)) == code
