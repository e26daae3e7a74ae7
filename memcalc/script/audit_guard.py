"""Puts files aside before Python changes them, where no mount namespace protects them.

An audit hook of the script's process, which its forks inherit, sees Python's own file operations
before they happen (PEP 578). What was there at the start is copied before it is opened to be
written, and linked before its name goes; ``kept_files`` puts it back when all have ended.
"""

import contextlib
import ctypes
import math
import os
import stat
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memcalc.script.kept_files import ABSENT, GONE, Entry, fill, key, write

_STOPPED = "memcalc: the script stops before it changes {path}, which cannot be kept: {why}."
_NO_FOLLOW, _BORN = 0x100, 0x800
"""A flag and a field of the system call statx (linux/stat.h)."""
_BORN_AT = 80
"""Where the field stands in the structure."""
_BESIDE_DATABASE = ("-journal", "-wal", "-shm")
"""Endings of the files that SQLite makes beside a database."""
_statx = getattr(ctypes.CDLL(None), "statx", None)


class AuditGuard:
    """Keeps files from before in a folder, each once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._run = folder, f"{folder.parent.resolve()}/"
        self._began = folder.stat().st_ctime_ns
        self._here = threading.local()
        self._renew_lock()
        self._streams, self._noted = set[str](), set[str]()
        for number in range(3):
            with contextlib.suppress(OSError):
                self._streams.add(key(os.fstat(number)))

    def install(self) -> None:
        """Install the audit hook in this process and its forks, until they end."""
        os.register_at_fork(after_in_child=self._renew_lock)
        sys.addaudithook(self._handle_event)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()
        self._here.acts = False

    def _handle_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Save the files of an audit event, before Python changes them."""
        act = _EVENTS.get(event)
        if act is None or getattr(self._here, "acts", False):
            return
        with self._lock:
            self._here.acts = True
            try:
                act(self, *arguments)
            except (FileNotFoundError, NotADirectoryError, TypeError, ValueError):
                pass  # Python itself says what is wrong.
            except OSError as error:
                told = _STOPPED.format(path=_resolve(arguments[0]), why=error.strerror)
                raise SystemExit(told) from None
            finally:
                self._here.acts = False

    def opens(self, path: Any, mode: str | None, flags: int) -> None:
        """Save a file before it is opened for writing; ``os.open`` (no mode) hides its folder."""
        if isinstance(path, int) or not flags & (os.O_ACCMODE | os.O_TRUNC):
            return
        folders = [-1]
        if mode is None and not os.path.isabs(path):
            folders += map(int, os.listdir("/proc/self/fd"))
        for folder in folders:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._back_up_content(_resolve(path, folder))

    def changes(self, path: Any, *_: Any) -> None:
        """Save a file before it is truncated."""
        self._back_up_content(_resolve(path))

    def changes_status(self, path: Any, *others: Any) -> None:
        """Record a path's mode, owner and times before they change."""
        self._record_status(_resolve(path, others[-1]))

    def removes(self, path: Any, folder: int = -1) -> None:
        """Save a file or folder before it is removed."""
        self._back_up(_resolve(path, folder, last=False))

    def renames(self, source: Any, target: Any, folder: int = -1, other: int = -1) -> None:
        """Save the files at both paths of a rename, or record that the second one is new."""
        self.removes(source, folder)
        path = _resolve(target, other, last=False)
        if os.path.lexists(path):
            self._back_up(path)
        else:
            self._append_entry(path, ABSENT)

    def opens_database(self, path: Any, *_: Any) -> None:
        """Save an SQLite database with its journals before it is opened."""
        text = os.fsdecode(path)
        path = _resolve(text.removeprefix("file:").partition("?")[0])
        self._back_up_content(path)
        for beside in (f"{path}{ending}" for ending in _BESIDE_DATABASE):
            if os.path.lexists(beside):
                self._back_up_content(beside)
            else:
                self._append_entry(beside, GONE)

    def _back_up_content(self, path: str) -> None:
        if stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.W_OK):
            self._back_up(path, changes=True)

    def _back_up(self, path: str, *, changes: bool = False) -> None:
        """Link a file, or all files of a folder, as a backup; ``changes``: also copy it."""
        status = self._record_status(path)
        if status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            for inside in os.listdir(path):
                self._back_up(os.path.join(path, inside))
        elif stat.S_ISREG(status.st_mode):
            try:
                os.link(path, self._folder / f"{key(status)}.link", follow_symlinks=False)
            except FileExistsError:
                pass
            except OSError:
                changes = True  # On another file system.
            if changes:
                self._copy(path, self._folder / f"{key(status)}.copy")

    def _copy(self, path: str, copy: Path) -> None:
        if copy.exists():
            return
        part = self._folder / f"{os.getpid()}-{threading.get_ident()}.part"
        try:
            with open(path, "rb") as source, open(part, "wb") as target:
                fill(target, source)
            # The first of several processes wins: a later one may have seen changes.
            with contextlib.suppress(FileExistsError):
                os.link(part, copy)
        finally:
            part.unlink(missing_ok=True)

    def _record_status(self, path: str) -> os.stat_result | None:
        """Record a path's mode, owner and times; return its status, None: the script made it."""
        status = os.lstat(path)
        number = key(status)
        if path.startswith(self._run) or number in self._streams:
            return None
        known = any((self._folder / f"{number}.{end}").exists() for end in ("copy", "link"))
        if not known and min(_birth_time(path), status.st_ctime_ns) > self._began:
            return None
        link = os.readlink(os.fsencode(path)) if stat.S_ISLNK(status.st_mode) else b""
        times = status.st_atime_ns, status.st_mtime_ns
        owner = status.st_uid, status.st_gid
        self._append_entry(path, status.st_mode, number, owner, times, link)
        return status

    def _append_entry(self, path: str, mode: int, *others: Any) -> None:
        """Append the entry of a path to the list of backups, once."""
        if path not in self._noted:
            self._noted.add(path)
            write(self._folder, Entry(os.fsencode(path), mode, *others))


def _resolve(path: Any, folder: int = -1, *, last: bool = True) -> str:
    """Return a path with symbolic links resolved; ``last``: also one at its end."""
    if isinstance(path, int):
        return os.path.realpath(f"/proc/self/fd/{path}")
    text = os.fsdecode(path)
    if folder >= 0:
        text = os.path.join(f"/proc/self/fd/{folder}", text)
    if last:
        return os.path.realpath(text)
    before, name = os.path.split(text.rstrip("/"))
    return os.path.join(os.path.realpath(before), name)


def _birth_time(path: str) -> float:
    """Return when a file was made, in nanoseconds; infinity where the file system cannot tell."""
    found = ctypes.create_string_buffer(256)
    if _statx is None or _statx(-100, os.fsencode(path), _NO_FOLLOW, _BORN, found):
        return math.inf
    if not struct.unpack_from("I", found)[0] & _BORN:
        return math.inf
    seconds, nanoseconds = struct.unpack_from("qI", found, _BORN_AT)
    return float(seconds * 10**9 + nanoseconds)


_EVENTS: dict[str, Callable[..., None]] = {
    "open": AuditGuard.opens,
    "os.truncate": AuditGuard.changes,
    **dict.fromkeys(("os.chmod", "os.chown", "os.utime"), AuditGuard.changes_status),
    **dict.fromkeys(("os.remove", "os.rmdir"), AuditGuard.removes),
    "os.rename": AuditGuard.renames,
    "os.link": AuditGuard.renames,
    "sqlite3.connect": AuditGuard.opens_database,
}
"""What is done before each of Python's audit events (library/audit_events)."""
