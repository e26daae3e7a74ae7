import contextlib
import io
import os
import pathlib
import socket
import subprocess
import sys

import pytest
from hypothesis import settings

pytest_plugins = ["tests.small"]
ROOT = pathlib.Path(__file__).parent.parent
_WARM = pytest.StashKey()
_EXAMPLES = 30
settings.register_profile("default", max_examples=_EXAMPLES, deadline=None)
settings.register_profile("nightly", max_examples=10 * _EXAMPLES, deadline=None)
settings.load_profile("default")


def pytest_configure(config):
    """Start one process for the session whose forks trace and train for all tests.

    A cold one takes seconds to import PyTorch and transformers; it does so when it is first asked.
    A test that needs a process of its own sets ``MEMCALC_WARM`` to nothing.
    """
    if hasattr(config, "workerinput"):
        return
    from memcalc.children.ask import WARM, launch

    name = f"memcalc-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"\0{name}")
        door.listen(64)
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        config.stash[_WARM] = launch(door, {**os.environ, **quiet}, 2)
    os.environ[WARM] = name


def pytest_unconfigure(config):
    if _WARM in config.stash:
        config.stash[_WARM].terminate()
        config.stash[_WARM].wait()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """No test reads what another, or the user, has cached."""
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def memcalc(tmp_path):
    """Run the real command line in a process of its own, offline, in an empty folder."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "memcalc", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": str(ROOT),
                "COLUMNS": "100",
                **environment,
            },
        )

    return run


@pytest.fixture
def in_process():
    """Run a command in this process: for what a test has patched, and for what starts nothing."""
    from memcalc.__main__ import run as outermost

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = outermost(list(arguments))
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def forked():
    """Call a function of a test module in a fork of the warm process, where it may patch PyTorch.

    Arguments and what it returns are plain JSON values; without a GPU, as traces run.
    """
    from memcalc.estimation.client import tracing_parent

    def call(function, *arguments):
        with tracing_parent() as parent:
            child = parent.child("tests.forked", "test")
            request = {"module": function.__module__, "name": function.__name__}
            said = child.ask({**request, "arguments": arguments})
        if "failed" in said:
            pytest.fail(said["failed"], pytrace=False)
        return said["value"]

    return call


@pytest.fixture
def examples():
    """So many cases where they are slow, and as much more at night as other tests generate."""
    return lambda count: count * settings().max_examples // _EXAMPLES
