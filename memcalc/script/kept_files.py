"""Files that were put aside before a script changed them, and how they are put back.

Each path has an ``Entry`` in a list. Each file has, by its inode, a link where its name may go and
a copy where its content may change.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import IO

import msgspec

from memcalc.script.failure import read_file

ABSENT, GONE = 0, 1
"""In place of a mode: nothing was there; and what is there now is of no use without the script."""
_BEFORE = b".before"
"""Ending of the name of a file with what was there before."""
_LIST = "entries"
_CLONE = 0x40049409
"""FICLONE: copies share their blocks (linux/fs.h)."""


class Entry(msgspec.Struct, frozen=True):
    """An earlier file, link or folder, or its absence."""

    path: bytes
    mode: int
    number: str = ""
    """Device and inode."""
    owner: tuple[int, int] = (-1, -1)
    times: tuple[int, int] = (0, 0)
    """Nanoseconds: read, written."""
    link: bytes = b""
    """Where a symbolic link led."""


def key(status: os.stat_result) -> str:
    """Return device and inode of a file as text, the same under all its names."""
    return f"{status.st_dev}-{status.st_ino}"


def write(folder: Path, entry: Entry) -> None:
    """Append an entry to the list of backups in a folder; the first one of a path counts."""
    with open(folder / _LIST, "ab", buffering=0) as file:
        # A line of its own, also behind one for which the disk had no room.
        file.write(b"\n" + msgspec.json.encode(entry))


def fill(target: IO[bytes], source: IO[bytes]) -> None:
    """Copy a file's content to another; the copies share blocks if the file system can do that.

    Raises:
        OSError: there is no room.
    """
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, _CLONE, source.fileno())
        return
    room = os.fstatvfs(target.fileno())
    if os.fstat(source.fileno()).st_size > room.f_bavail * room.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    shutil.copyfileobj(source, target, 1 << 20)


def restore(folder: Path) -> list[str]:
    """Restore all files backed up in a folder; return the paths that failed."""
    absent, entries = _read_all(folder)
    kept, failed = {entry.number for entry in entries}, []
    for act, those in (
        (_restore_content, entries),
        (_remove_new_names, absent),
        (_restore_name, entries),
        (lambda _, entry, __: _restore_status(entry.path, entry), entries[::-1]),
    ):
        for entry in those:
            try:
                act(folder, entry, kept)
            except OSError:
                failed.append(os.fsdecode(entry.path))
    return list(dict.fromkeys(failed))


def restore_late(folder: Path) -> tuple[list[str], list[str]]:
    """Restore deleted files; write the old version of a changed file beside it, as ``.before``.

    Returns:
        The files that were made for changed ones, and those that could not be put back.
    """
    made, failed = [], []
    for entry in _read_all(folder)[1]:
        copy, path = folder / f"{entry.number}.copy", entry.path
        try:
            if not copy.exists():
                if not os.path.lexists(path):
                    _restore_name(folder, entry, set())
                    _restore_status(path, entry)
                continue
            if os.path.lexists(path):
                if os.lstat(path).st_mtime_ns == entry.times[1]:
                    continue
                path += _BEFORE
                made.append(os.fsdecode(path))
            _copy(copy, path)
            _restore_status(path, entry)
        except OSError:
            failed.append(os.fsdecode(entry.path))
    return made, failed


def _read_all(folder: Path) -> tuple[list[Entry], list[Entry]]:
    """Return entries of paths that did not exist, and all others with folders before content."""
    found = dict[bytes, Entry]()
    for line in read_file(folder / _LIST).splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            entry = msgspec.json.decode(line, type=Entry)
            found.setdefault(entry.path, entry)
    absent = {Path(os.fsdecode(path)): one for path, one in found.items() if one.mode <= GONE}
    others = []
    for path in sorted(found):
        there = Path(os.fsdecode(path))
        if not absent.keys() & {there, *there.parents}:
            others.append(found[path])
    return list(absent.values()), others


def _copy(source: Path, target: bytes) -> None:
    with open(source, "rb") as reads, open(target, "xb") as writes:
        fill(writes, reads)


def _restore_content(folder: Path, entry: Entry, _: set[str]) -> None:
    """Write a changed file's old content back into it, under whichever name it has."""
    copy = folder / f"{entry.number}.copy"
    for path in (os.fsencode(folder / f"{entry.number}.link"), entry.path) if copy.exists() else ():
        if os.path.lexists(path) and key(os.lstat(path)) == entry.number:
            os.chmod(path, stat.S_IMODE(entry.mode) | stat.S_IRWXU)
            with open(copy, "rb") as source, open(path, "r+b") as target:
                target.truncate(0)
                fill(target, source)
            _restore_status(path, entry)
            return


def _remove_new_names(__: Path, entry: Entry, kept: set[str]) -> None:
    """Remove names that a script gave to files that get their old ones back."""
    inside = [os.path.join(at, name) for at, _, names in os.walk(entry.path) for name in names]
    for path in inside or [entry.path]:
        with contextlib.suppress(FileNotFoundError):
            if entry.mode == GONE or key(os.lstat(path)) in kept:
                os.unlink(path)
    for at, _, _ in os.walk(entry.path, topdown=False) if inside else ():
        with contextlib.suppress(OSError):
            os.rmdir(at)


def _restore_name(folder: Path, entry: Entry, _: set[str]) -> None:
    """Make the file, link or folder of an entry again, unless it is still at its path."""
    path, link = entry.path, folder / f"{entry.number}.link"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode) and stat.S_ISDIR(entry.mode):
            return
        if key(status) == entry.number:
            return
        shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else os.unlink(path)
    if stat.S_ISDIR(entry.mode):
        os.mkdir(path)
    elif stat.S_ISLNK(entry.mode):
        os.symlink(entry.link, path)
    elif link.exists():
        os.link(link, path)
    elif stat.S_ISREG(entry.mode):
        _copy(folder / f"{entry.number}.copy", path)


def _restore_status(path: bytes, entry: Entry) -> None:
    if stat.S_IFMT(os.lstat(path).st_mode) != stat.S_IFMT(entry.mode):
        return
    with contextlib.suppress(PermissionError):
        os.chown(path, *entry.owner, follow_symlinks=False)
    if not stat.S_ISLNK(entry.mode):
        os.chmod(path, stat.S_IMODE(entry.mode))
    os.utime(path, ns=entry.times, follow_symlinks=False)
