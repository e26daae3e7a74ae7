"""Whole training runs of CNNs, held against cuDNN's own plans that were recorded of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RECORDED = ROOT / "evidence" / "cnn_runs.json"


def test_fifty_runs_were_asked_of_the_library():
    recorded = json.loads(RECORDED.read_text())
    assert recorded["cudnn"].startswith("9.20.")
    assert len(recorded["runs"]) >= 50
    assert all(run["known"] for run in recorded["runs"])
    assert len({run["gpu"] for run in recorded["runs"]}) == 4


@pytest.mark.nightly
def test_a_run_whose_workspaces_are_recorded_is_what_the_librarys_plans_take():
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    command = [sys.executable, str(ROOT / "benchmarks" / "cnn_runs.py"), "compare", str(RECORDED)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.split()[0] for line in done.stdout.splitlines()]
    assert said.count("equal") == len(said) == 55
