"""What all tests share: warm processes that fork, one cache a test, the command line in-process."""

import contextlib
import gc
import importlib.metadata
import io
import os
import pathlib
import platform
import re
import subprocess
import sys

import pytest
from filelock import FileLock
from hypothesis import settings

pytest_plugins = ["tests.small", "tests.forked_scripts"]
ROOT = pathlib.Path(__file__).parent.parent
ALIKE = {"COLUMNS": "100"}
"""What no answer of the command line may depend on in a test."""
os.environ["HF_HUB_OFFLINE"] = "1"  # read as the hub's package is imported
_WARM = pytest.StashKey()
_EXAMPLES = 30
"""Generated cases of a usual test; by day two thirds of them and always the same, so that who
changes something else is not stopped; at night ten times as many, and others each time."""
settings.register_profile(
    "default", max_examples=2 * _EXAMPLES // 3, deadline=None, derandomize=True
)
settings.register_profile("nightly", max_examples=10 * _EXAMPLES, deadline=None)
settings.load_profile("default")
if "PYTEST_XDIST_WORKER" in os.environ:
    # What is imported until all tests are known stays: no need to look for garbage in it.
    gc.disable()


def pytest_configure(config):
    """Start the processes for the session whose forks train for all tests."""
    from tests import warm

    if not hasattr(config, "workerinput"):
        _compile()
        config.stash[_WARM] = warm.start()
    warm.share()


def _compile():
    """Where memcalc is not installed, compile the stub driver as an editable install does.

    Each test has a cache of its own, and would compile it into that.
    """
    from memcalc.engine.stub import build
    from memcalc.files.compiler import CompileError, system_compiler

    compiler = system_compiler()
    if compiler is not None and not build.is_current(build.BUILT, platform.machine()):
        with contextlib.suppress(OSError, CompileError):
            build.BUILT.mkdir(exist_ok=True)
            build.build(build.BUILT, compiler, platform.machine())


def pytest_collection_modifyitems(items):
    """Figures of the PyTorch that constraints.txt names hold for no other."""
    found = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if importlib.metadata.version("torch").split("+")[0] == found[1]:
        return
    for item in items:
        if item.get_closest_marker("pinned"):
            item.add_marker(pytest.mark.skip(reason=f"holds for PyTorch {found[1]}"))


def pytest_collection_finish():
    """From here on garbage is looked for, but not among what PyTorch and the others have loaded."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config):
    if _WARM in config.stash:
        for process in config.stash[_WARM]:
            process.terminate()
            process.wait()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that all workers of the session have in common, for what is costly to find out."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def once(shared):
    """A context in which answers are found once for all workers: one cache, asked in turns."""

    @contextlib.contextmanager
    def alone(name):
        with FileLock(shared / f"{name}.lock"), pytest.MonkeyPatch.context() as patch:
            patch.setenv("MEMCALC_CACHE", str(shared / "cache"))
            yield shared / "cache"

    return alone


@pytest.fixture(autouse=True)
def _same_variables():
    """A variable that a library sets stays in one test: others' scripts would each start cold."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """No test reads what another, or the user, has cached."""
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own_servers():
    """Fork servers are started as by a user: none has imported anything for other tests."""
    from memcalc.estimation.engine import engine
    from tests import warm

    engine.close()
    warm.unshare()
    yield
    engine.close()
    warm.share()


@pytest.fixture
def cold(tmp_path):
    """Run the real command line in processes of its own, offline, in an empty folder."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "memcalc", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **ALIKE, **environment},
        )

    return run


@pytest.fixture
def memcalc(tmp_path):
    """The same within this process, from the outermost handler on; children are forked as ever."""
    from memcalc.__main__ import run as outermost

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.chdir(tmp_path)
            for name, value in {**ALIKE, **environment}.items():
                patch.setenv(name, value)
            code = outermost(list(arguments))
        said = []
        for stream in (out, err):
            stream.flush()
            stream.seek(0)
            said.append(stream.read())
        return subprocess.CompletedProcess(arguments, code, *said)

    return run


@pytest.fixture(scope="session")
def forked():
    """Call a function of a test module in a fork of the warm process, where it may patch PyTorch.

    Arguments and what it returns are plain JSON values; without a GPU, as traces run.
    """
    from memcalc.estimation.engine import engine

    def call(function, *arguments):
        request = {"module": function.__module__, "name": function.__name__}
        said = engine.ask("tests.forked", "test", {**request, "arguments": arguments})
        if "failed" in said:
            pytest.fail(said["failed"], pytrace=False)
        return said["value"]

    return call


@pytest.fixture
def examples():
    """So many cases where they are slow, and as much more at night as other tests generate."""
    return lambda count: count * max(1, settings().max_examples // _EXAMPLES)
