"""A process over the stub driver that has imported PyTorch, and runs each piece of code in a fork.

So every test that uses it is one of a fork after the library was loaded, too.
"""

import functools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.engine.forking_process import ForkingProcess

ROOT = Path(__file__).parents[2]
_FIND = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
_BEGINS = """
import sys
from pathlib import Path
from memcalc.engine.stub import load
load.load_into_process(load.prepare(Path(sys.argv[1]), sys.argv[2]))
import torch
torch.backends.cudnn.enabled = False
"""


@functools.cache
def cuda_torch():
    """Python, package folder and CUDA version of a CUDA build; the test is skipped without one."""
    for python in (sys.executable, os.environ.get("MEMCALC_CUDA_PYTHON", "")):
        if not python:
            continue
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, check=True)
        if not done.stdout.strip():
            continue
        root = Path(done.stdout.strip()).parent
        found = re.search(r"^cuda.*'([\d.]+)'", (root / "version.py").read_text(), re.MULTILINE)
        if found is not None:
            return python, root, found[1]
    return None


def needs_cuda_torch():
    """The same, or the test is skipped."""
    found = cuda_torch()
    if found is None:
        pytest.skip("needs PyTorch's CUDA build")
    return found


def python_of_tests(code, *arguments, **more):
    """Run code by the Python with the CUDA build, in a fresh process; returns what it printed."""
    python, _, _ = needs_cuda_torch()
    done = subprocess.run(
        [python, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})},
        timeout=120,
        check=False,
        **more,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


class StubProcess(ForkingProcess):
    """One process; ``run`` forks it."""

    def __init__(self):
        python, root, cuda = needs_cuda_torch()
        # It shall show how a fork's settings count, so it has none of its own.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MEMCALC_STUB", "CUDA_"))}
        super().__init__(python, _BEGINS, [str(root), cuda], {**kept, "PYTHONPATH": str(ROOT)})

    def run(self, code, **settings):
        """Run code that fills ``answer``; settings are given without their prefix."""
        named = {f"MEMCALC_STUB_{key}": str(value) for key, value in settings.items()}
        named |= {key: str(value) for key, value in settings.items() if key.startswith("CUDA_")}
        return self.ask(code, named)
