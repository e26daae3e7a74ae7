"""Sizes of files as people are told them, and the room that a folder has for more."""

from __future__ import annotations

import os
from pathlib import Path

from memcalc.errors import EstimateError
from memcalc.files.untrusted_values import reason


def text(count: float) -> str:
    """``767 MB``, ``1.6 GB``: decimal, as indexes and disks count."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{max(1, round(count / 1e6))} MB"


def of(folder: Path) -> int:
    """Bytes of all files in a folder; what cannot be read counts nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def require_room(folder: Path, needed: float, what: str) -> None:
    """Check that a folder's disk has room.

    Raises:
        EstimateError: it has not; the sentence has both figures.
    """
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        raise EstimateError(f"Cannot use {folder}: {reason(error)}.") from None
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise EstimateError(
            f"{what} needs about {text(needed)} in {folder} while it is installed, and "
            f"{text(free)} are free: make room, or set MEMCALC_CACHE to a folder on a larger disk."
        )
