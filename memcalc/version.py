"""Versions: memcalc's own, the newest PyTorch it was held against, and those of packages here."""

from __future__ import annotations

import functools
import os
import re
import sys

__version__ = "0.1.0"

OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
"""Operators, runs and ranks were recorded with these, and are equal to what is estimated."""
PACKAGES = (
    *("torch", "transformers", "accelerate", "peft", "bitsandbytes", "torchao"),
    "liger-kernel",
)
"""Those whose code an answer depends on."""
_FOLDER = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")


def not_held_against(torch: tuple[int, int]) -> tuple[str, ...]:
    """What an answer for a version of PyTorch has to say: a sentence, or nothing."""
    if OLDEST_TORCH <= torch <= NEWEST_TORCH:
        return ()
    known, than = (NEWEST_TORCH, "newer") if torch > NEWEST_TORCH else (OLDEST_TORCH, "older")
    given, nearest = (".".join(map(str, version)) for version in (torch, known))
    return (f"PyTorch {given} is {than} than any that memcalc was held against ({nearest})",)


@functools.cache
def installed(package: str) -> str | None:
    """The version of an installed package; ``None``: it is not installed.

    Read from the name of the folder that describes it (PEP 376), which takes a tenth of the time
    of ``importlib.metadata``; that is asked where a folder's name holds no version.
    """
    wanted = _normal(package)
    for names in map(_described, sys.path):
        if wanted in names:
            return names[wanted] or _asked(package)
    return None


@functools.cache
def _described(folder: str) -> dict[str, str]:
    """Packages that a folder of ``sys.path`` describes; an empty version where it is not said."""
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for entry in entries:
        if entry.endswith("-info"):
            match = _FOLDER.fullmatch(entry)
            name = match["name"] if match else entry.partition(".")[0]
            found.setdefault(_normal(name), match["version"] if match else "")
    return found


def _asked(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
