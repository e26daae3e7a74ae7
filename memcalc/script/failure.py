"""Why a program's process has no answer: a sentence that it leaves for memcalc."""

import contextlib
import os
import stat
from pathlib import Path

_open = open
"""A program may replace the built-in one."""
_NAME = "failure"
"""A file in the folder that a program's process shares with memcalc's own."""
_ROOM = 2048
"""Bytes that are there for the sentence from the start: the disk may be full when it is needed."""
NO_ROOM = (
    "Cannot write in {}: {}; set MEMCALC_CACHE or TMPDIR to a folder that can be written, with "
    "more room."
)
"""What is said where the folder of a run takes no file."""


def make_room(shared: Path) -> None:
    """Make the file for a failure's sentence, filled with blanks: the disk may be full later.

    Raises:
        OSError: there is no room.
    """
    (shared / _NAME).write_bytes(b" " * _ROOM)


def leave(shared: Path, sentence: str) -> None:
    """Write the sentence on a failure into its file, unless the program has removed that."""
    with contextlib.suppress(OSError), _open(shared / _NAME, "r+b") as file:
        file.write(sentence.encode(errors="backslashreplace")[:_ROOM])


def read(shared: Path) -> str:
    """Return the sentence on a failure that a program's process left, or an empty text."""
    return read_file(shared / _NAME)[:_ROOM].decode(errors="replace").strip()


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file, or none of a link, a pipe or a missing file."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(number, "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(number).st_mode) else b""
    except OSError:
        return b""
