"""Programs of packages that people use run to their end, and memcalc counts what they count."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from filelock import FileLock

from tests.conftest import ROOT

PROGRAMS = sorted((ROOT / "benchmarks" / "strangers").glob("[!_]*.py"))
pytestmark = pytest.mark.nightly


def _python(packages: str, folder: Path) -> Path:
    """A Python that has these packages beside those of this one; made once."""
    home = folder / re.sub(r"\W+", "-", packages)
    with FileLock(f"{home}.lock"):
        if not home.exists():
            venv.create(home, with_pip=False, symlinks=True)
            beside = next(home.glob("lib/python*/site-packages"))
            (beside / "beside.pth").write_text(sysconfig.get_path("purelib"))
            asked = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
            asked += ["install", "-q", "-c", str(ROOT / "constraints.txt"), *packages.split()]
            done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=300)
            (home / "failed").write_text(done.stderr if done.returncode else "")
    failed = (home / "failed").read_text()
    if failed:
        pytest.skip(f"{packages} cannot be installed: {failed[-300:]}")
    return home / "bin" / "python"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_strangers_program_is_counted_as_it_counts_itself(program, tmp_path_factory, tmp_path):
    packages = re.search(r"^Requires: (.+)$", program.read_text(), re.MULTILINE)[1]
    python = _python(packages, tmp_path_factory.getbasetemp().parent)
    words = [python, "-m", "memcalc", "simulate", "--gpu", "a10g", "--steps", "0"]
    words += ["-o", "answer.json", "--", "python", PROGRAMS[0].parent / "_count.py", program]
    run = subprocess.run(
        words,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    counted = json.loads(
        next(x for x in (run.stdout + run.stderr).splitlines()[::-1] if x.startswith("{"))
    )
    answer = json.loads((tmp_path / "answer.json").read_text())
    peak, components = answer["peak"], answer["components"]
    said = {
        "allocated": peak["allocated"],
        "reserved": peak["reserved"],
        "weights": components["weights"] + components.get("buffers", 0),
        "optimizer_state": components.get("optimizer_state", 0),
    }
    for rung in ("allocated", "reserved"):
        assert said[rung] == counted[rung]
    # At the peak there may be more than what is still alive at the end.
    for held in counted.keys() - {"allocated", "reserved"}:
        assert said[held] >= counted[held]
