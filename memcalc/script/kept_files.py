"""Files that were put aside before a script changed them, and how they are put back.

Each path has an ``Entry``. Each file has, by its inode, a link where its name may go and a copy
where its content may change.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

ABSENT, GONE = 0, 1
"""In place of a mode: nothing was there; and what is there now is of no use without the script."""
_BEFORE = ".before"
"""Ending of the name of a file with what was there before."""
_CLONE = 0x40049409
"""FICLONE: copies share their blocks (linux/fs.h)."""


class Entry(NamedTuple):
    """A file, link or folder as it was before, or its absence."""

    path: str
    mode: int
    number: str = ""
    """Device and inode."""
    owner: tuple[int, int] = (-1, -1)
    times: tuple[int, int] = (0, 0)
    """Nanoseconds: read, written."""
    link: str = ""
    """Where a symbolic link led."""


def key(status: os.stat_result) -> str:
    """Return what tells a file from all others, under whichever name."""
    return f"{status.st_dev}-{status.st_ino}"


def entry_path(folder: Path, path: str) -> Path:
    """Return where the entry of a path is, or would be."""
    return folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.entry"


def write(folder: Path, entry: Entry) -> None:
    """Write an entry whole or not at all, unless there is one of its path."""
    to = entry_path(folder, entry.path)
    if not to.exists():
        part = to.with_suffix(f".{os.getpid()}")
        named = os.fsencode(entry.path).hex(), os.fsencode(entry.link).hex()
        part.write_bytes(msgspec.msgpack.encode(entry._replace(path=named[0], link=named[1])))
        part.replace(to)


def read(path: Path) -> Entry:
    """Return a written entry."""
    entry = msgspec.msgpack.decode(path.read_bytes(), type=Entry)
    named, link = (os.fsdecode(bytes.fromhex(one)) for one in (entry.path, entry.link))
    return entry._replace(path=named, link=link)


def fill(target: IO[bytes], source: IO[bytes]) -> None:
    """Copy a file, without room for it where the file system can share blocks.

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
    """Put back what is in a folder; returns the files that could not be."""
    absent, entries = _read_all(folder)
    kept, failed = {entry.number for entry in entries}, []
    for act, those in (
        (_restore_content, entries),
        (_remove_new_names, absent),
        (_restore_name, entries),
        (_restore_status, entries[::-1]),
    ):
        for entry in those:
            try:
                act(folder, entry, kept)
            except OSError:
                failed.append(entry.path)
    return failed


def restore_late(folder: Path) -> tuple[list[str], list[str]]:
    """Put back what is gone, and what was changed under a new name: it may be changed again since.

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
                    _set_status(path, entry)
                continue
            if os.path.lexists(path):
                if os.lstat(path).st_mtime_ns == entry.times[1]:
                    continue
                path += _BEFORE
                made.append(path)
            _copy(copy, path)
            _set_status(path, entry)
        except OSError:
            failed.append(entry.path)
    return made, failed


def _read_all(folder: Path) -> tuple[list[Entry], list[Entry]]:
    """Return entries of paths at which nothing was, and others: folders before what is inside."""
    entries = sorted(map(read, folder.glob("*.entry")))
    absent = [entry for entry in entries if entry.mode in (ABSENT, GONE)]
    return absent, [entry for entry in entries if entry not in absent]


def _copy(source: Path, target: str) -> None:
    with open(source, "rb") as reads, open(target, "xb") as writes:
        fill(writes, reads)


def _restore_content(folder: Path, entry: Entry, _: set[str]) -> None:
    copy = folder / f"{entry.number}.copy"
    for path in (str(folder / f"{entry.number}.link"), entry.path) if copy.exists() else ():
        if os.path.lexists(path) and key(os.lstat(path)) == entry.number:
            os.chmod(path, stat.S_IMODE(entry.mode) | stat.S_IRWXU)
            with open(copy, "rb") as source, open(path, "r+b") as target:
                target.truncate(0)
                fill(target, source)
            _set_status(path, entry)
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


def _restore_status(_: Path, entry: Entry, __: set[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_IFMT(os.lstat(entry.path).st_mode) == stat.S_IFMT(entry.mode):
            _set_status(entry.path, entry)


def _set_status(path: str, entry: Entry) -> None:
    with contextlib.suppress(PermissionError):
        os.chown(path, *entry.owner, follow_symlinks=False)
    if not stat.S_ISLNK(entry.mode):
        os.chmod(path, stat.S_IMODE(entry.mode))
    os.utime(path, ns=entry.times, follow_symlinks=False)
