"""Fetches a release of cuDNN from PyPI into memcalc's cache, once.

``python -m memcalc.engine.cudnn.fetch REQUIREMENT`` prints the folder of the library. The shim runs
this when a program first needs cuDNN, so that other programs never wait for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from memcalc.errors import EstimateError, MemcalcError
from memcalc.files import cache, lock

_LIBRARY = "nvidia/cudnn/lib"
_SIZES = {"nvidia-cudnn-cu12": "0.7 GB", "nvidia-cudnn-cu13": "0.4 GB"}
"""Of the download; 0.5 to 1 GB unpacked."""
_PATIENCE = 1800.0
"""Seconds to wait for another process that fetches the same."""
_UNWANTED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME")
"""What a program over the stub driver sets and a plain Python must not have."""


def kept(requirement: str) -> Path | None:
    """The folder of a release that was fetched before."""
    folder = _place(requirement) / _LIBRARY
    return folder if folder.is_dir() else None


def impossible() -> str:
    """Why nothing can be fetched on this machine; empty: it can."""
    return "" if _installer() else "there is neither pip nor uv to fetch cuDNN with"


def command(requirement: str) -> str:
    """A line of a shell that prints the folder of a release, and fetches it before if need be."""
    home = str(Path(__file__).resolve().parents[3])
    unset = (part for name in _UNWANTED for part in ("-u", name))
    parts = ("env", *unset, f"PYTHONPATH={home}", sys.executable, "-m", __spec__.name, requirement)
    return shlex.join(parts)


def fetch(requirement: str) -> Path:
    """The folder of a release; fetched if it is not here.

    Args:
        requirement: such as ``nvidia-cudnn-cu13==9.24.0.43``.

    Raises:
        EstimateError: it cannot be fetched or kept.
        UsageError: another process has been fetching it for half an hour.
    """
    place = _place(requirement)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
    with lock.held(place.parent / f"{place.name}.fetched", patience=_PATIENCE):
        if (folder := kept(requirement)) is not None:
            return folder
        for left in place.parent.glob(f"{place.name}.part*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{place.name}.part", dir=place.parent) as part:
            _install(requirement, Path(part))
            # All or nothing: what another process sees is whole.
            os.replace(Path(part, "site"), place)
    return place / _LIBRARY


def _install(requirement: str, part: Path) -> None:
    installer = _installer()
    if not installer:
        raise EstimateError(f"cuDNN cannot be fetched: {impossible()}; install pip.")
    size = _SIZES.get(requirement.partition("==")[0], "up to 0.7 GB")
    print(f"memcalc: fetching {requirement} ({size}), once", file=sys.stderr, flush=True)
    options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(part / "site"))
    command = [*installer, *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (part / "site" / _LIBRARY).is_dir():
        said = " ".join(done.stderr.split())[-300:]
        raise EstimateError(
            f"cuDNN cannot be fetched ({said}): type pip install {requirement}, "
            "or ask offline, which counts no workspaces of cuDNN."
        )


def _installer() -> list[str]:
    """The command of pip of this Python, or of uv."""
    if importlib.util.find_spec("pip") is not None:
        pip = (sys.executable, "-m", "pip", "install")
        return [*pip, "--disable-pip-version-check", "--no-input"]
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", sys.executable] if uv else []


def _place(requirement: str) -> Path:
    return cache.folder() / "cudnn" / requirement.replace("==", "-")


if __name__ == "__main__":
    try:
        print(fetch(sys.argv[1]))
    except MemcalcError as error:
        sys.exit(f"memcalc: {error}")
