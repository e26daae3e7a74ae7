"""Recordings held against runs over the stub driver, in a process that has the PyTorch for it."""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import runpy
import subprocess
import sys

from tests.conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import tables

STANDIN = tables.STANDIN
RECORDINGS = tables.read_recordings(sorted(STANDIN.glob("torch*.json")))
"""By name, such as runs-torch2.13-cc90."""
UNPACKED = "MEMCALC_TORCH_ROOTS"
"""Where releases of PyTorch lie unpacked, each in a folder named like 2.13: for nightly tests."""
DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
ENGINES = ("deepspeed_zero1", "zero2", "zero3")
NEAR = 0.02
"""Peaks of another release of PyTorch are as near as this."""

_VERDICT = re.compile(r" *\d+ +[\d.]+ s ")


def named(*starts):
    """Names of recordings that start so, in order."""
    return [name for name in RECORDINGS if name.startswith(starts)]


def runs(name):
    return RECORDINGS[name]["runs"]


def release(name):
    """Of PyTorch, such as 2.13."""
    return ".".join(RECORDINGS[name]["environment"]["torch"].split(".")[:2])


def torch_root(name):
    """A folder with the recording's own PyTorch; None: there is none here."""
    roots = os.environ.get(UNPACKED)
    found = pathlib.Path(roots, release(name)) if roots else None
    return found if found is not None and found.is_dir() else None


def installed(name):
    """Whether the PyTorch here is of the recording's release."""
    return importlib.metadata.version("torch").startswith(f"{release(name)}.")


def judged(name, indices, root):
    """What is printed of runs under the PyTorch in a folder, in a process of their own."""
    command = [
        *(sys.executable, str(ROOT / "benchmarks" / "judge_recordings.py")),
        *(str(STANDIN / f"torch{release(name)}.json"), "--recording", name),
        *("--runs", ",".join(map(str, indices))),
        *(("--torch-root", str(root)) if root is not None else ()),
    ]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr[-2000:]


def sample(forked, name, indices):
    """A few runs under the PyTorch that is installed: equal if it is the recording's."""
    within = 0.0 if installed(name) else NEAR
    missed = forked(missed_here, name, list(indices), within)
    assert not missed, "\n".join(missed)


def missed_here(name, indices, within):
    """In a fork that has the stub driver: what is printed of runs that are further off."""
    judging = runpy.run_path(str(ROOT / "benchmarks" / "judge_recordings.py"))["judge"]
    verdicts = judging(RECORDINGS[name], indices)
    return [one.words() for one in verdicts if not one.within(within)]


def all_of(name, *, but=()):
    """All runs under the recording's own PyTorch, but some; skipped where it is not here."""
    import pytest

    root = torch_root(name)
    if root is None and not installed(name):
        pytest.skip(f"{UNPACKED} names no folder with a PyTorch {release(name)}")
    indices = [
        index
        for index, run in enumerate(runs(name))
        if (DEEPSPEED or run["plan"].get("parallel") not in ENGINES) and index not in but
    ]
    lines = [line for line in judged(name, indices, root).splitlines() if _VERDICT.match(line)]
    assert len(lines) == len(indices)
    unequal = [one for one in lines if not one.endswith(": equal") and not only_in_loading(one)]
    assert not unequal, "\n".join(unequal)


def only_in_loading(line):
    """Recordings give random values to weights on the host, for which DTensor takes 48 bytes."""
    phases = line.partition("different in ")[2].partition(": ")[2].split("; ")
    return "ERROR" not in line and all(phase.startswith("load 0:") for phase in phases)
