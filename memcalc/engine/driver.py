"""Opens the stub driver in this process, before PyTorch is imported."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError

_environment: dict[str, str] = {}
"""What this process and those that it starts find the stub driver by."""
_FIELD = r"^{name}[^=]*= *'([^']*)'"


def open_here() -> None:
    """See that PyTorch finds the stub driver where it looks for NVIDIA's; twice is once.

    Raises:
        EstimateError: there is no PyTorch with CUDA here, or it is already imported.
    """
    if not stub.is_open():
        # To look for a GPU by NVML alone does not begin CUDA, which PyTorch refuses in a fork then.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        root, cuda = _installed()
        opened = stub.prepare(root, cuda)
        stub.open_here(opened)
        _environment.update(stub.environment(opened))
    # A child of the process that opened it was given the environment of who asks.
    os.environ.update(_environment)


def installed(python: str) -> tuple[Path, str]:
    """The PyTorch that a Python would import, and the CUDA it was built for.

    Raises:
        EstimateError: there is none, or it is built without CUDA.
    """
    if python == sys.executable:
        return _installed()
    asks = "import importlib.util as u; found = u.find_spec('torch'); print(found and found.origin)"
    try:
        done = subprocess.run([python, "-c", asks], capture_output=True, text=True, check=False)
    except OSError as error:
        raise EstimateError(f"{python} cannot be started: {error}.") from None
    origin = done.stdout.strip()
    if done.returncode or origin in ("", "None"):
        raise EstimateError(f"{python} has no PyTorch: type {python} -m pip install torch.")
    return _read(Path(origin).parent)


def _installed() -> tuple[Path, str]:
    """The PyTorch that this process would import, and the CUDA it was built for."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise EstimateError("There is no PyTorch here: type pip install torch.")
    return _read(Path(found.origin).parent)


def _read(root: Path) -> tuple[Path, str]:
    """A PyTorch, and the CUDA it was built for.

    Raises:
        EstimateError: it is built without CUDA.
    """
    text = (root / "version.py").read_text(encoding="utf-8")
    cuda = re.findall(_FIELD.format(name="cuda"), text, re.MULTILINE)
    if not cuda:
        raise EstimateError(
            "The PyTorch here is built without CUDA, and exact answers run its CUDA code: type pip "
            "install torch on Linux, or --method analytic."
        )
    return root, cuda[-1]
