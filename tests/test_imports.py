"""What is imported, and what is said where an import fails."""

import subprocess
import sys
from importlib import metadata

import pytest

from memcalc.imports import line
from memcalc.version import pip_line

HEAVY = "torch", "transformers", "bitsandbytes", "numpy", "matplotlib", "plotext"
RUNS = "import runpy; runpy.run_module('memcalc', run_name='__main__')"
ESTIMATES = """
import memcalc
found = memcalc.estimate('distilbert-base-cased', method='analytic', optim='adam8bit')
assert found.components['optimizer_state'] == 134004336
"""
LIGHT = {
    "help": (RUNS, "--help", HEAVY),
    "models": (RUNS, "list models", HEAVY),
    "optimizers": (RUNS, "list optimizers", HEAVY),
    "gpus": (RUNS, "list gpus", HEAVY),
    "budgets": (RUNS, "check", (*HEAVY, "yaml")),
    "closed forms": (ESTIMATES, "", HEAVY),
    "the pytest plugin": ("import memcalc.pytest_plugin", "", (*HEAVY, "rich")),
}
BUDGET = """
[runs.a]
model = "distilbert-base-cased"
method = "analytic"
limits.peak = "8 GiB"
"""


@pytest.mark.parametrize("name", LIGHT)
def test_what_needs_no_training_imports_nothing_heavy(name, tmp_path):
    code, words, heavy = LIGHT[name]
    (tmp_path / "memcalc.toml").write_text(BUDGET)
    ends = (
        f"import atexit, sys; atexit.register(lambda: print([*{{*{heavy!r}}} & {{*sys.modules}}]))"
    )
    command = [sys.executable, "-c", f"{ends}\n{code}", *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n")


def test_of_an_import_that_failed_by_another_the_other_is_told():
    missing = ModuleNotFoundError("No module named 'termcolor'")
    outer = ModuleNotFoundError("Could not import module 'LlamaConfig'.")
    outer.__cause__ = missing
    assert line(outer) == "No module named 'termcolor'"


def test_of_other_errors_their_own_words_are_told():
    error = ValueError("two\n lines.")
    error.__cause__ = KeyError("x")
    assert line(error) == "two lines"
    assert line(TypeError()) == "TypeError"


def test_a_missing_package_is_named_as_pip_knows_it():
    assert pip_line(["cv2", "PIL"]) == "pip install opencv-python-headless pillow"
    assert pip_line(["einops"], "/venv/bin/python") == "/venv/bin/python -m pip install einops"


def test_torchvision_does_not_change_the_torch_that_is_installed():
    release = metadata.version("torch").partition("+")[0]
    assert pip_line(["torchvision"]) == f"pip install torchvision torch=={release}"
