"""Carries the new files of a script out of the layers of its namespace."""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from memcalc.script.checkpoint_marks import read_number
from memcalc.script.namespace import Namespace, layer

_OPAQUE = "user.overlay.opaque"
"""An attribute of a folder that was deleted and made again (Linux, overlayfs.rst)."""


class Carried(msgspec.Struct):
    """The changed files of a script, and those that are lost."""

    changed: list[str] = []
    """Files that were there before, and that it opened to change, or deleted."""
    lost: list[str] = []
    """New files that could not be carried out."""


def carry_out(namespace: Namespace, shared: Path, checkpoints: set[str]) -> Carried:
    """Move a script's new files from overlay layers to their real paths, without checkpoints.

    Args:
        namespace: the script's.
        shared: the folder that it was entered with.
        checkpoints: folders in which nothing new is kept.

    Returns:
        What else was in the layers.
    """
    carried, links = Carried(), list[tuple[Path, Path]]()
    for number, folder in enumerate(() if namespace.in_memory else namespace.covered):
        upper = layer(shared, number)
        if upper.is_dir():
            links += _carry(upper, Path(folder), carried, checkpoints)
    # A link to what was left out leads nowhere.
    for link, target in links:
        if (target.parent / os.readlink(link)).exists():
            _attempt(carried, target, os.symlink, os.readlink(link), target)
    return carried


def _carry(
    upper: Path, folder: Path, carried: Carried, checkpoints: set[str]
) -> list[tuple[Path, Path]]:
    """Move new files from a folder's overlay layer to the folder; return new links to be made."""
    links = []
    for found in sorted(upper.iterdir()):
        there = folder / found.name
        if not os.path.lexists(there):
            if {str(folder), str(there)} & checkpoints:
                continue
            if found.is_symlink():
                links.append((found, there))
            else:
                _carry_new(found, there, carried)
        elif found.is_dir() and not found.is_symlink() and there.is_dir():
            if _is_opaque(found):
                carried.changed.append(str(there))
            links += _carry(found, there, carried, checkpoints)
        else:
            carried.changed.append(str(there))
    return links


def _carry_new(found: Path, there: Path, carried: Carried) -> None:
    """Move a new file or folder to its real path, unless it holds a checkpoint or no file."""
    modes = {path: path.lstat().st_mode for path in (found, *found.rglob("*"))}
    files = [path for path, mode in modes.items() if stat.S_ISREG(mode)]
    if not files or any(read_number(path) is not None for path in files):
        return
    for path, mode in modes.items():
        if stat.S_ISDIR(mode):
            with contextlib.suppress(OSError):
                os.removexattr(path, _OPAQUE)
        elif not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            path.unlink()  # Sockets and pipes.
    _attempt(carried, there, shutil.move, found, there)


def _is_opaque(folder: Path) -> bool:
    """Return True if the script deleted a folder and made it again."""
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False


def _attempt(carried: Carried, there: Path, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function that makes a path; list the path as lost if it raises OSError."""
    try:
        function(*arguments)
    except OSError:
        carried.lost.append(str(there))
