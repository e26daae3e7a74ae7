"""Sets a user's files aside, and puts them back when the script has ended.

Where the kernel grants no mount namespace, a library that is preloaded into the script
(``file_guard.c``) moves each file aside before the C library changes or deletes it, and writes a
journal. The process that outlives the script (``keeper.py``) puts them back, however it ended.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memcalc.children.keeper import KEPT, THEN
from memcalc.script.checkpoint_marks import FOLDERS, noted_folders, number_of

LIBRARY = "MEMCALC_FILE_GUARD"
"""Variable with the library's path."""
_FOLDER, _BEGAN = "MEMCALC_ASIDE", "MEMCALC_ASIDE_BEGAN"
"""Variables that the library reads: its folder, and the nanosecond before which files are old."""
_COARSE = 10_000_000
"""Nanoseconds by which a file's time may lie before the clock's."""
_NAME, _JOURNAL = "aside", "journal"
_PUTS_BACK = """
import sys
from pathlib import Path
sys.path.append({home!r})
from memcalc.script.set_aside import put_back
put_back(Path({folder!r}), Path({noted!r}))
"""


class _Entry(NamedTuple):
    """An entry of the journal."""

    what: str
    """a: a file is aside; d: a file or folder had this mode and these times; r: a folder was
    removed; m: a folder from before was renamed; n: this is new; k: something new was renamed."""
    first: str
    second: str
    mode: int
    owners: tuple[int, int]
    """User and group."""
    times: tuple[int, int]
    """Of access and of change, in nanoseconds."""


def is_used() -> bool:
    """Return whether files are set aside in this process."""
    return _FOLDER in os.environ


def begin_again(folder: Path, command: list[str]) -> None:
    """Start this process again, with the library; ``folder`` belongs to the run."""
    aside = folder / _NAME
    (folder / KEPT).touch()
    aside.mkdir(mode=0o700)
    home = str(Path(__file__).resolve().parents[2])
    noted = os.environ.get(FOLDERS, "")
    (folder / THEN).write_text(_PUTS_BACK.format(home=home, folder=str(folder), noted=noted))
    preloaded = f"{os.environ.get('LD_PRELOAD', '')}:{os.environ[LIBRARY]}"
    began = time.time_ns() - _COARSE
    told = {_FOLDER: str(aside), _BEGAN: str(began), "LD_PRELOAD": preloaded.lstrip(":")}
    os.execve(command[0], command, {**os.environ, **told})


def changed(folder: Path) -> list[str]:
    """Return the files that were set aside, or removed with their folder, by their first names."""
    return list(dict.fromkeys(one.first for one in _entries(folder) if one.what in "adrm"))


def not_put_back(folder: Path) -> list[str]:
    """Return files that still are aside."""
    return [
        one.first for one in _entries(folder) if one.what == "a" and os.path.lexists(one.second)
    ]


def put_back(folder: Path, noted: Path) -> None:
    """Put all files back, the last first, and remove checkpoints and what lies beside them.

    ``noted``: names folders of checkpoints.
    """
    new: list[str] = []
    moved: list[tuple[str, str]] = []
    for one in reversed(_entries(folder)):
        if one.what == "k":
            moved.append((one.first, one.second))
        elif one.what == "n":
            path = one.first
            for here, there in reversed(moved):
                path = _moved(path, here, there)
            new.append(path)
        else:
            # What cannot be put back stays aside, and is told.
            with contextlib.suppress(OSError):
                _undo(one)
            if one.what == "m":
                new = [_moved(path, one.second, one.first) for path in new]
    _remove_checkpoints(new, noted_folders(noted))
    if not not_put_back(folder):
        (folder / KEPT).unlink(missing_ok=True)


def _undo(one: _Entry) -> None:
    if one.what == "a" and os.path.lexists(one.second):
        os.makedirs(os.path.dirname(one.first), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(one.first)
        shutil.move(one.second, one.first)
    elif one.what == "r":
        os.makedirs(one.first, exist_ok=True)
    elif one.what == "m" and os.path.lexists(one.second) and not os.path.lexists(one.first):
        os.rename(one.second, one.first)
    if one.what in "adr" and not os.path.islink(one.first):
        status = os.stat(one.first)
        if (status.st_uid, status.st_gid) != one.owners:
            os.chown(one.first, *one.owners)
        os.chmod(one.first, one.mode)
        os.utime(one.first, ns=one.times)


def _remove_checkpoints(new: list[str], checkpoints: set[str]) -> None:
    """Remove new folders with checkpoints or without files, and checkpoints elsewhere."""
    folders = {path for path in new if os.path.isdir(path) and not os.path.islink(path)}
    for path in sorted(folders):
        if os.path.dirname(path) in folders or not os.path.isdir(path):
            continue
        files = [Path(at, name) for at, _, names in os.walk(path) for name in names]
        if (
            path in checkpoints
            or not files
            or any(number_of(file) is not None for file in files if _is_file(file))
        ):
            shutil.rmtree(path, ignore_errors=True)
    for path in new:
        beside = os.path.dirname(path) in checkpoints
        if not _is_file(Path(path)) or (number_of(path) is None and not beside):
            continue
        with contextlib.suppress(OSError):
            os.unlink(path)
    for path in new:
        if os.path.islink(path) and not os.path.exists(path):
            os.unlink(path)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _moved(path: str, here: str, there: str) -> str:
    inside = path == here or path.startswith(f"{here}/")
    return there + path[len(here) :] if inside else path


def _entries(folder: Path) -> list[_Entry]:
    return list(_read(folder / _NAME / _JOURNAL))


def _read(journal: Path) -> Iterator[_Entry]:
    try:
        texts = [os.fsdecode(text) for text in journal.read_bytes().split(b"\0")]
    except FileNotFoundError:
        return
    for at in range(0, len(texts) - 5, 5):
        what, first, second, rights, moments = texts[at : at + 5]
        mode, user, group = rights.split()
        accessed, modified = (int(moment.replace(".", "")) for moment in moments.split())
        owners, times = (int(user), int(group)), (accessed, modified)
        yield _Entry(what, first, second, int(mode, 8), owners, times)
