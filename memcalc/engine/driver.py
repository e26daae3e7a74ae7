"""Opens the stub driver in this process, before PyTorch is imported, and settles it for a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memcalc.engine import environment
from memcalc.engine.cudnn import library, loading
from memcalc.engine.environment.installed import Torch, torch_at, torch_in
from memcalc.engine.environment.search import Environment
from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError
from memcalc.files.offline import is_offline

if TYPE_CHECKING:
    from memcalc.engine.cudnn.library import Library, Missing

ENVIRONMENT = "MEMCALC_ENGINE"
"""Variable that tells a process which environment it runs in, as JSON."""
_ANY = (8, 0)
"""Compute capability of the GPU that is looked for while none is named."""
_variables: dict[str, str] = {}
"""What this process and those that it starts find the stub driver by."""


def open_here() -> None:
    """See that PyTorch finds the stub driver where it looks for NVIDIA's; twice is once.

    Raises:
        EstimateError: there is no PyTorch with CUDA here.
    """
    if not stub.is_open():
        hide_here()
        # To look for a GPU by NVML alone does not begin CUDA, which PyTorch refuses in a fork then.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        root, cuda = installed()
        # An environment's packages lie in folders of their own.
        opened = stub.prepare(root, cuda, sys.path if os.environ.get(ENVIRONMENT) else ())
        os.environ.update(loading.environment(cudnn(_ANY)))
        stub.open_here(opened)
        _variables.update(stub.environment(opened))
    # A child of the process that opened it was given the environment of who asks.
    os.environ.update(_variables)


def hide_here() -> None:
    """Hide the packages that do not go with the PyTorch of this process's environment."""
    told = os.environ.get(ENVIRONMENT)
    if told:
        environment.hide(msgspec.json.decode(told, type=Environment))


def cudnn(capability: tuple[int, int], paths: Sequence[Path] | None = None) -> Library | Missing:
    """The cuDNN that plans for a GPU of this capability; ``None``: where this process looks."""
    if paths is None:
        paths = [Path(entry) for entry in sys.path if entry]
    return library.find(paths, capability, offline=is_offline())


def installed(python: str = sys.executable) -> tuple[Path, str]:
    """The PyTorch that a Python would import, and the CUDA it was built for.

    Raises:
        EstimateError: there is none, or it is built without CUDA.
    """
    found = torch_in(sys.path) if python == sys.executable else _asked(python)
    if found is None:
        pip = "pip" if python == sys.executable else f"{python} -m pip"
        raise EstimateError(f"There is no PyTorch in {python}: type {pip} install torch.")
    if not found.cuda:
        raise EstimateError(
            f"The PyTorch in {python} is built without CUDA, and exact answers run its CUDA code: "
            "type pip install torch on Linux, or --method analytic."
        )
    return Path(found.root), found.cuda


def _asked(python: str) -> Torch | None:
    """What another Python would import."""
    asks = "import importlib.util as u; found = u.find_spec('torch'); print(found and found.origin)"
    try:
        done = subprocess.run([python, "-c", asks], capture_output=True, text=True, check=False)
    except OSError as error:
        raise EstimateError(f"{python} cannot be started: {error}.") from None
    return None if done.returncode else torch_at(done.stdout.strip())
