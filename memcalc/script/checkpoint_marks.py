"""Marks in the files of checkpoints that a simulated script saved."""

import contextlib
import os
from pathlib import Path
from typing import Any

_MARK = b"saved in a simulated run, number %08d"
NOTED = "checkpoints"
"""A file of a run that names folders of checkpoints, whose new files all go with them."""
MARKED = "marked"
"""A file beside it that names files with marks, which go where no namespace hides them."""
FOLDERS = "MEMCALC_CHECKPOINTS"
"""Variable with the path of the former."""
LENGTH = len(_MARK % 0)


def mark(number: int) -> bytes:
    """Return the bytes that a file holds in place of the checkpoint of this number."""
    return _MARK % number


def number_in(file: Any) -> int | None:
    """Return the checkpoint's number if a mark comes next in an open file, else None."""
    try:
        at = file.tell()
        head = file.read(LENGTH)
        file.seek(at)
    except (AttributeError, OSError, ValueError):
        return None
    before, _, number = bytes(head).rpartition(b" ") if isinstance(head, bytes) else (b"", b"", b"")
    return int(number) if before and before == _MARK.rpartition(b" ")[0] else None


def read_number(path: Path | str) -> int | None:
    """Return the checkpoint's number if a file begins with a mark, else None."""
    try:
        with open(path, "rb") as opened:
            return number_in(opened)
    except (OSError, ValueError):
        return None


def note_folder(folder: str) -> None:
    """List a folder as a checkpoint's, whose new files are not kept."""
    _append_path(folder, NOTED)


def note_mark(path: Path | str | bytes) -> None:
    """List a file as one with a mark, to be removed after the run."""
    _append_path(path, MARKED)


def _append_path(path: Path | str | bytes, name: str) -> None:
    if (file := os.environ.get(FOLDERS)) is not None:
        with open(os.path.join(os.path.dirname(file), name), "ab") as opened:
            opened.write(os.fsencode(os.path.abspath(path)) + b"\0")


def remove_marks(noted: Path) -> None:
    """Delete the files of a list that still begin with a mark."""
    for path in noted_paths(noted):
        with contextlib.suppress(OSError):
            if read_number(path) is not None:
                os.unlink(path)


def noted_paths(file: Path) -> set[str]:
    """Return the paths in a list file, or none if it cannot be read."""
    try:
        return {os.fsdecode(folder) for folder in file.read_bytes().split(b"\0") if folder}
    except OSError:
        return set()
