"""Starts vLLM itself on a simulated GPU."""

import importlib.util
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from memcalc.catalog.gpus import Gpu, Target
from memcalc.children.command import own_folder
from memcalc.engine import driver, simulated_gpu
from memcalc.engine.environment import vllm as vllm_environment
from memcalc.engine.environment.releases import parse
from memcalc.engine.serving import start
from memcalc.engine.stub import load as stub
from memcalc.errors import UsageError
from memcalc.estimation.card import card_memory
from memcalc.estimation.question import torch_version
from memcalc.records.engines import Started

_MODULE = "vllm.entrypoints.cli.main"
_GPUS = 8
"""GPUs of the machine where the command says how many it uses: a server's usual number."""
_CARRIED = 8 << 20
"""Bytes of the largest copy to the GPU whose values are kept."""
_SHEBANG = re.compile(rb"#!\s*(/\S*python\S*)")
_TO_GET_IT = (
    "type --vllm 0.33, which makes an environment for it once (5.8 GB on disk), or --python with "
    "the Python that has it"
)


def python_with_vllm(python: str | None = None, release: str | None = None) -> str | None:
    """Return the path of a Python that has vLLM, or None; a release is installed if missing.

    ``release``, such as ``0.33``, names an environment, which is made if missing.

    Returns:
        The path of a Python, or None if this machine has none.

    Raises:
        SettingError: the release is not understood.
        EstimateError: it cannot be fetched.
    """
    if python is not None:
        return python
    if release is not None:
        return vllm_environment.find(parse("vllm", release))
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    command = shutil.which("vllm")
    if command is not None:
        with open(command, "rb") as file:
            named = _SHEBANG.match(file.readline(4096))
        if named is not None:
            return os.fsdecode(named[1])
    return vllm_environment.existing()


def require_python(python: str | None, release: str | None = None) -> str:
    """Return the path of a Python that has vLLM, or raise UsageError.

    Raises:
        UsageError: there is no vLLM on this machine.
    """
    found = python_with_vllm(python, release)
    if found is None:
        raise UsageError(f"vLLM is not installed here: {_TO_GET_IT}.")
    return found


def start_vllm(
    words: Sequence[str],
    gpu: Gpu,
    *,
    python: str,
    count: int = 1,
    module: str = _MODULE,
    given: Mapping[str, str] = {},
    length: int | None = None,
    where: Path | None = None,
    out: int | IO[str],
    timeout: float = math.inf,
) -> Started:
    """Run a vLLM command on simulated GPUs until its engine is up or refuses.

    Args (the others are as in ``start.start``):
        words: its arguments, such as ``serve MODEL``.
        gpu: each of the machine's GPUs.
        count: GPUs of the machine; 1: a server's usual number.
        given: variables that stand before the command.
        length: of sequences to count, beside the longest.
    """
    with own_folder(in_cache=False) as folder:
        environ = _make_environment({**os.environ, **given}, gpu, python, count, folder)
        return start.start(
            [module, *words],
            python=python,
            environ={**environ, **start.variables(folder, environ, length=length)},
            folder=folder,
            where=Path.cwd() if where is None else where,
            out=out,
            timeout=timeout,
        )


def _make_environment(
    given: Mapping[str, str], gpu: Gpu, python: str, count: int, folder: Path
) -> dict[str, str]:
    """Return the environment variables of a vLLM process on simulated GPUs."""
    root, cuda = driver.find_torch(python)
    prepared = stub.prepare(root, cuda, (str(root.parent),))
    card = card_memory(gpu)
    target = Target(
        capability=gpu.capability, multiprocessors=gpu.multiprocessors, torch=torch_version(None)
    )
    found = {
        **given,
        **simulated_gpu.settings(gpu, target, room=card.room),
        **card.variables(),
        **stub.environment(prepared, folder / "processes"),
        "MEMCALC_STUB_DEVICES": str(count if count > 1 else _GPUS),
        "MEMCALC_STUB_CARRIED": str(_CARRIED),
        "MEMCALC_SIMULATED": "1",
        # A server that is ended leaves its sockets.
        "TMPDIR": str(folder),
    }
    found.pop("CUDA_VISIBLE_DEVICES", None)
    return found
