"""Users' scripts by day: forked from a process that has imported what each of theirs would.

So a run costs a tenth of the time. Runs whose variables differ from others', those that are
compiled and all at night have a fresh process, as users' have.
"""

import functools
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import settings

from memcalc.children import bring, command
from memcalc.script import process

_SERVE = """
import gc, json, multiprocessing.process, os, sys
gc.disable()
sys.path[:] = filter(None, sys.path)
from pathlib import Path
from memcalc.script.child import main
from memcalc.script.protect import protect
from memcalc.engine.values import follower
import torch._dynamo  # by the first optimizer of nearly every script
follower.prepare()
gc.freeze()
for line in iter(sys.stdin.readline, ""):
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        multiprocessing.process.ORIGINAL_DIR = asked["folder"]  # as it began elsewhere
        for number, name in enumerate((os.devnull, *asked["files"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        shared = Path(asked["command"][-1])
        protect(shared)
        main(shared)
    print(os.waitpid(pid, 0)[1], flush=True)
"""
_EVERY_RUN = re.compile(
    "MEMCALC_|LD_|HF_HUB_(DOWNLOAD|ETAG)_TIMEOUT|TORCHINDUCTOR_CACHE_DIR|"
    "(TRITON_LIBCUDA_PATH|TORCH_CPP_LOG_LEVEL|PYTEST_CURRENT_TEST|COLUMNS)$|"
    "TORCHELASTIC_|MASTER_(ADDR|PORT)$|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME)$|"
    "OMP_NUM_THREADS$"
)
"""Variables that a run is given, or that change nothing of it as PyTorch is imported."""


class _Forks:
    """Takes the place of ``command`` where a script is started."""

    own_folder = staticmethod(command.own_folder)

    def __init__(self, folder):
        self.folder = folder
        self._before = _others({"MEMCALC_CACHE": "none", **os.environ})
        self._loaded = self._process = None

    def run(self, typed, folder, timeout=None, *, cwd, env, stdout, stderr, **how):
        loaded = [env.get(f"LD_{name}") for name in ("PRELOAD", "LIBRARY_PATH")]
        known = self._loaded in (None, loaded) and _others(env) == self._before
        if typed[0] != sys.executable or not known:
            streams = {"stdout": stdout, "stderr": stderr}
            return command.run(typed, folder, timeout, cwd=cwd, env=env, **streams, **how)
        self._loaded = loaded
        files = [str(self.folder / name) for name in ("out", "err")]
        for file in files:
            open(file, "wb").close()
        asked = {"environment": env, "folder": str(cwd), "files": files, "command": typed}
        status = self._answer(json.dumps(asked), env)
        said = [_hand_on(file, to) for file, to in zip(files, (stdout, stderr or 2), strict=True)]
        return subprocess.CompletedProcess(typed, os.waitstatus_to_exitcode(status), *said)

    def _answer(self, asked, env):
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", bring.code() + _SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
        print(asked, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self):
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate()


def _others(environment):
    cache = environment["MEMCALC_CACHE"]
    return {
        name: value
        for name, value in environment.items()
        if not _EVERY_RUN.match(name) and not value.startswith(cache)
    }


def _hand_on(file, to):
    """What was written goes where the run was told to write; returned where that is a pipe."""
    with open(file, "rb") as written:
        said = written.read()
    if to == subprocess.PIPE:
        return said.decode(errors="replace")
    if to >= 0:
        os.write(to, said)
    return None


@pytest.fixture(scope="session")
def _forks(tmp_path_factory):
    forks = _Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


_prepare = process.stub.prepare


@functools.cache
def _prepared(kept, *asked):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMCALC_CACHE", kept)
        return _prepare(*asked)


@pytest.fixture
def forked_scripts(_forks, shared, monkeypatch):
    """By day, scripts that are simulated in this process run in forks."""
    if settings().max_examples < 100:
        monkeypatch.setattr(process, "command", _forks)
        kept = str(shared / "stub")
        monkeypatch.setattr(process.stub, "prepare", functools.partial(_prepared, kept))
