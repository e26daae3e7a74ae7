"""Starts a serving engine over the stub driver, reads what its processes write, and ends them."""

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

import msgspec
import psutil

from memcalc.children import bring
from memcalc.engine.serving import plugin
from memcalc.errors import EstimateError, took_too_long
from memcalc.records.engines import EngineFigures, Refused, Started, WorkerFigures

T = TypeVar("T")
_BEGINS = """
import runpy, signal
sys.path[:] = filter(None, sys.path)
from memcalc.children.child import die_with
die_with(int(sys.argv[1]), signal.SIGKILL)
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
_PLUGIN = """
from memcalc.engine.serving.plugin import register
"""
_NAME = "memcalc_vllm_plugin"
_ALLOWED = "VLLM_PLUGINS"
"""Variable with which vLLM's users name the plugins that may load."""
_POLL = 0.2
_PATIENCE = 5.0
"""Seconds for resource trackers to end by themselves."""


def variables(
    folder: Path, environ: Mapping[str, str], *, length: int | None = None
) -> dict[str, str]:
    """Return variables that make vLLM's processes write their figures into a folder.

    The plugin is a package with an entry point in that folder, which ``PYTHONPATH`` names.
    """
    own = folder / "plugin"
    entry = own / f"{_NAME}-1.dist-info"
    entry.mkdir(parents=True, exist_ok=True)
    (own / f"{_NAME}.py").write_text(bring.code() + _PLUGIN)
    (entry / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: 1\n")
    (entry / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{_NAME} = {_NAME}:register\n")
    path = os.pathsep.join(filter(None, (str(own), environ.get("PYTHONPATH"))))
    allowed = {_ALLOWED: f"{environ[_ALLOWED]},{_NAME}"} if environ.get(_ALLOWED) else {}
    counted = {plugin.LENGTH: str(length)} if length is not None else {}
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    # It compiles a thousand kernels after memory is divided, for requests that never come.
    quick = {"VLLM_DEEP_GEMM_WARMUP": "skip"}
    return {"PYTHONPATH": path, plugin.FOLDER: str(folder), **allowed, **counted, **quiet, **quick}


def start(
    command: Sequence[str],
    *,
    python: str,
    environ: Mapping[str, str],
    folder: Path,
    where: Path,
    out: int | IO[str],
    timeout: float = math.inf,
) -> Started:
    """Start a module of vLLM's, wait until its engine is up or refuses, and end its processes.

    Args:
        command: the module and its arguments.
        python: the Python that has vLLM.
        environ: variables of its processes; ``variables`` made some of them.
        folder: where they write their figures.
        where: the folder in which it runs.
        out: what it prints goes there.
        timeout: seconds after which it is ended.

    Raises:
        EstimateError: it started no engine and did not say why, or its time was up.
    """
    until = time.monotonic() + timeout
    try:
        process = subprocess.Popen(
            [python, "-c", bring.code() + _BEGINS, str(os.getpid()), *command],
            cwd=where,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise EstimateError(f"{python} cannot be started: {error}.") from None
    try:
        while process.poll() is None and not _is_up_or_refused(read(folder)):
            if time.monotonic() > until:
                raise EstimateError(took_too_long("command", timeout))
            time.sleep(_POLL)
    finally:
        _terminate(process)
    if not _is_up_or_refused(found := read(folder)):
        raise EstimateError(
            f"{command[0].partition('.')[0]} ended with exit code {process.returncode} before it "
            f"started an engine. It said: {_last_line(out)}"
        )
    return found


def _is_up_or_refused(found: Started) -> bool:
    """Return whether the engine is up, or vLLM has refused it."""
    return found.engine is not None or found.refused is not None


def _last_line(out: int | IO[str]) -> str:
    """Return the last line of an output file, or ``see above.`` for a stream."""
    if isinstance(out, int):
        return "see above."
    lines = Path(out.name).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing.")


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and all that it started.

    Python's resource trackers end by themselves: they first remove the memory that others shared.
    """
    trackers = []
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(process.pid)
        for one in (server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("resource_tracker" in word for word in one.cmdline()):
                    trackers.append(one)
                else:
                    one.kill()
    process.wait()
    psutil.wait_procs(trackers, timeout=_PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read(folder: Path) -> Started:
    """Read the figures and refusals that an engine's processes have written so far."""
    refused = sorted(folder.glob("refused-*.json"))
    engines = sorted(folder.glob("engine-*.json"))
    workers = sorted(
        (_decode(path, WorkerFigures) for path in folder.glob("worker-*.json")),
        key=lambda one: one.rank,
    )
    return Started(
        engine=_decode(engines[0], EngineFigures) if engines else None,
        workers=tuple(workers),
        refused=_decode(refused[0], Refused) if refused and not engines else None,
    )


def _decode(path: Path, kind: type[T]) -> T:
    return msgspec.json.decode(path.read_bytes(), type=kind)
