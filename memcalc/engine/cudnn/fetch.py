"""Fetches a release of cuDNN from PyPI into memcalc's cache, once.

``python -m memcalc.engine.cudnn.fetch REQUIREMENT`` prints the folder of the library. The shim runs
this when a program first needs cuDNN, so that other programs never wait for it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from memcalc.engine.environment import installer, layers
from memcalc.engine.environment.layers import Built
from memcalc.errors import EstimateError, MemcalcError
from memcalc.records.progress import Progress, listening, tell

_LIBRARY = "nvidia/cudnn/lib"
_SIZES = {"nvidia-cudnn-cu12": "0.7 GB", "nvidia-cudnn-cu13": "0.4 GB"}
"""Of the download; 0.5 to 1 GB unpacked."""
_UNWANTED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME")
"""What a program over the stub driver sets and a plain Python must not have."""


def kept(requirement: str) -> Path | None:
    """The folder of a release that was fetched before."""
    layer = layers.complete(_name(requirement))
    return layer.path / _LIBRARY if layer is not None else None


def impossible() -> str:
    """Why nothing can be fetched on this machine; empty: it can."""
    try:
        installer.tool()
    except EstimateError:
        return "there is neither pip nor uv to fetch cuDNN with"
    return ""


def command(requirement: str) -> str:
    """A line of a shell that prints the folder of a release, and fetches it before if need be."""
    home = str(Path(__file__).resolve().parents[3])
    unset = (part for name in _UNWANTED for part in ("-u", name))
    parts = ("env", *unset, f"PYTHONPATH={home}", sys.executable, "-m", __spec__.name, requirement)
    return shlex.join(parts)


def fetch(requirement: str) -> Path:
    """The folder of a release such as ``nvidia-cudnn-cu13==9.24.0.43``; fetched if it is not here.

    Raises:
        EstimateError: it cannot be fetched or kept.
    """
    from memcalc.engine.environment.make import install

    name = _name(requirement)
    size = _SIZES.get(requirement.partition("==")[0], "up to 0.7 GB")

    def build(target: Path) -> Built:
        tell(Progress(f"fetching {requirement} ({size}), once"))
        notes = install((requirement,), target)
        if not (target / _LIBRARY).is_dir():
            raise EstimateError(f"{requirement} has no {_LIBRARY}.")
        return Built(name, notes)

    try:
        return layers.make(lambda: layers.complete(name), build).path / _LIBRARY
    except EstimateError as error:
        raise EstimateError(
            f"cuDNN cannot be fetched ({str(error).rstrip('.')}): type pip install {requirement}, "
            "or ask offline, which counts no workspaces of cuDNN."
        ) from None


def _name(requirement: str) -> str:
    """Of the folder of a release."""
    return f"{requirement.replace('==', '-')}-{layers.suffix()}"


def _say(progress: Progress) -> None:
    if progress.text:
        print(f"memcalc: {progress.text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        with listening(_say):
            print(fetch(sys.argv[1]))
    except MemcalcError as error:
        sys.exit(f"memcalc: {error}")
