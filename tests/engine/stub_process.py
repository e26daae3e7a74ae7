"""A process over the stub driver that has imported PyTorch, and runs each piece of code in a fork.

So every test that uses it is one of a fork after the library was loaded, too.
"""

import functools
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FIND = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
_SERVE = """
import json, os, sys, traceback
from pathlib import Path
from memcalc.engine.stub import load
load.open_here(load.prepare(Path(sys.argv[1]), sys.argv[2]))
import torch
torch.backends.cudnn.enabled = False
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        os.environ.update(asked["settings"])
        names = {"torch": torch, "answer": {}}
        try:
            exec(asked["code"], names)
            said = {"answer": names["answer"]}
        except BaseException:
            said = {"failed": traceback.format_exc()}
        os.write(1, (json.dumps(said) + "\\n").encode())
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        os.write(1, (json.dumps({"failed": f"status {status}"}) + "\\n").encode())
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})}
    done = subprocess.run(
        [python, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
        **more,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


class StubProcess:
    """One process; ``run`` forks it."""

    def __init__(self):
        python, root, cuda = needs_cuda_torch()
        # It shall show how a fork's settings count, so it has none of its own.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MEMCALC_STUB", "CUDA_"))}
        self._process = subprocess.Popen(
            [python, "-c", _SERVE, str(root), cuda],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**kept, "PYTHONPATH": str(ROOT)},
            text=True,
        )

    def run(self, code, **settings):
        """Run code that fills ``answer``; settings are given without their prefix."""
        named = {f"MEMCALC_STUB_{key}": str(value) for key, value in settings.items()}
        named |= {key: str(value) for key, value in settings.items() if key.startswith("CUDA_")}
        asked = {"code": textwrap.dedent(code), "settings": named}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        said = json.loads(self._process.stdout.readline())
        assert "failed" not in said, said["failed"]
        return said["answer"]

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=30)
