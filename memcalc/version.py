"""The versions of memcalc and of installed packages."""

import functools
import os
import re
import sys
from collections.abc import Iterable

__version__ = "0.1.0"

NEWEST_TORCH = (2, 15)
"""The newest release whose allocator settings were looked at."""
PACKAGES = (
    *("torch", "transformers", "accelerate", "peft", "bitsandbytes", "torchao"),
    "liger-kernel",
)
"""Those whose code an answer depends on."""
_FOLDER = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")


@functools.cache
def find_version(package: str) -> str | None:
    """Return the version of an installed package from its folder's name, or None.

    Read from the name of the folder that describes it (PEP 376), which takes a tenth of the time
    of ``importlib.metadata``; that is asked where a folder's name holds no version.
    """
    wanted = _normalize(package)
    for names in map(_list_packages, sys.path):
        if wanted in names:
            if names[wanted]:
                return names[wanted]
            from importlib.metadata import version

            return version(package)
    return None


@functools.cache
def _list_packages(folder: str) -> dict[str, str]:
    """Return the versions of the packages in a folder of ``sys.path``, by name."""
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for entry in entries:
        if entry.endswith("-info"):
            match = _FOLDER.fullmatch(entry)
            name = match["name"] if match else entry.partition(".")[0]
            found.setdefault(_normalize(name), match["version"] if match else "")
    return found


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_DISTRIBUTIONS = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "PIL": "pillow",
    "pl_bolts": "lightning-bolts",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions by the names that they are imported by, where the two differ."""
_BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchtext")
"""Each release of these needs one release of PyTorch, which pip would change for them."""


def pip_line(modules: Iterable[str], python: str = "") -> str:
    """Return the pip command that installs modules, for this Python or another."""
    named = [_DISTRIBUTIONS.get(one, one) for one in modules]
    if not set(named).isdisjoint(_BUILT_FOR_TORCH) and python in ("", sys.executable):
        release = find_version("torch")
        named += [f"torch=={release.partition('+')[0]}"] if release else []
    start = f"{python} -m pip" if python else "pip"
    return f"{start} install {' '.join(named)}"
