"""Opens the stub driver in this process, before PyTorch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memcalc import shadowing
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
"""Variable with the environment that a process runs in, as JSON."""
_ANY = (8, 0)
"""Compute capability for which cuDNN is searched if no GPU is named."""
_variables: dict[str, str] = {}
"""Variables with which this process and its children find the stub driver."""


def open_stub() -> None:
    """Load the stub driver into this process, so that PyTorch finds it in place of NVIDIA's.

    A second call does nothing.

    Raises:
        EstimateError: there is no PyTorch with CUDA here.
    """
    if not stub.is_open():
        hide_packages()
        # A check for GPUs by NVML does not start CUDA, which PyTorch then refuses in a fork.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        root, cuda = find_torch()
        # An environment's packages are in several folders.
        opened = stub.prepare(root, cuda, sys.path if os.environ.get(ENVIRONMENT) else ())
        os.environ.update(loading.environment(cudnn(_ANY)))
        stub.load_into_process(opened)
        _variables.update(stub.environment(opened))
    # A fork of the process that opened it has the environment of its client.
    os.environ.update(_variables)


def hide_packages() -> None:
    """Hide the packages that do not go with the PyTorch of this process's environment."""
    own = os.environ.get(ENVIRONMENT)
    if own:
        environment.hide(msgspec.json.decode(own, type=Environment))


def cudnn(capability: tuple[int, int], paths: Sequence[Path] | None = None) -> Library | Missing:
    """Find the cuDNN that plans for a GPU of this capability.

    ``paths``: folders to search; by default this process's ``sys.path``.
    """
    if paths is None:
        paths = [Path(entry) for entry in sys.path if entry]
    return library.find(paths, capability, offline=is_offline())


def find_torch(python: str = sys.executable) -> tuple[Path, str]:
    """Return the folder of the PyTorch that a Python would import, and the CUDA it is built for.

    Raises:
        EstimateError: it has no PyTorch, or one that is built without CUDA.
    """
    found = torch_in(sys.path) if python == sys.executable else _find_torch_of(python)
    if found is None:
        if python == sys.executable and (hidden := shadowing.describe_hiding("torch")):
            raise EstimateError(hidden)
        pip = "pip" if python == sys.executable else f"{python} -m pip"
        raise EstimateError(f"There is no PyTorch in {python}: type {pip} install torch.")
    if not found.cuda:
        raise EstimateError(
            f"The PyTorch in {python} is built without CUDA, and exact answers run its CUDA code: "
            "type pip install torch on Linux, or --method analytic."
        )
    return Path(found.root), found.cuda


def _find_torch_of(python: str) -> Torch | None:
    """Return the PyTorch that another Python would import, or None; run that Python to find it."""
    asks = "import importlib.util as u; found = u.find_spec('torch'); print(found and found.origin)"
    try:
        done = subprocess.run([python, "-c", asks], capture_output=True, text=True, check=False)
    except OSError as error:
        raise EstimateError(f"{python} cannot be started: {error}.") from None
    return None if done.returncode else torch_at(done.stdout.strip())
