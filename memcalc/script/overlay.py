"""An overlay for a script's files: files from before the run stay unchanged.

A script sees its own writes, renames and removals. Until the run ends, earlier files are covered
or hidden; the covering files lie in a temporary folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

_COARSE = 10_000_000
"""Nanoseconds by which a file's time may lie before the clock's."""
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that name folders of caches, whose files are not the script's."""
_ALSO_CACHES = (
    "~/.cache",
    "~/.triton",
    "~/.config",
    os.path.join(tempfile.gettempdir(), "torchin"),
)
_lstat, _listdir, _rmtree = os.lstat, os.listdir, shutil.rmtree
_unlink, _rmdir = os.unlink, os.rmdir


_place: list[str | None] = [None]
"""Where folders of overlays are made; ``None``: where all temporary ones are."""


def use(folder: str) -> None:
    """Make folders of overlays in this one, which whoever started this process removes."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _place[0] = folder


class Overlay:
    """Maps each path to where its content lies."""

    def __init__(self) -> None:
        self.led: dict[str, str] = {}
        """Files whose content lies elsewhere."""
        self.folders: dict[str, str] = {}
        """Folders with additional content, and where that lies."""
        self.links: dict[str, str] = {}
        """Symbolic links that the script created, and their targets."""
        self.drawn: dict[str, str] = {}
        """The same links in the temporary folder."""
        self.hidden: set[str] = set()
        """Files from before the run that the script removed."""
        self.made: set[str] = set()
        """New files that the script opened for writing."""
        self.new_folders: list[str] = []
        """Folders that the script created, in order."""
        self.numbers: dict[str, int] = {}
        """What lies in files of our folder, for whoever keeps it by numbers."""
        self.of_checkpoints: set[str] = set()
        """Folders with checkpoints; in one that the script made, what lies beside goes too."""
        self.covers: Callable[[], None] = lambda: None
        """Called when a file that was there before is covered or hidden for the first time."""
        self.lock = threading.RLock()
        """Held while something is kept: checkpoints may be saved by threads."""
        self._begun = time.time_ns() - _COARSE
        named = [os.environ[name] for name in _CACHES if os.environ.get(name)]
        self._caches = tuple(
            os.path.abspath(os.path.expanduser(p)) for p in (*named, *_ALSO_CACHES)
        )
        self._folder = ""
        self._numbers = itertools.count()

    def where(self, path: str) -> str | None:
        """Where a path's content lies; ``None``: the script removed it."""
        if not (self.led or self.hidden or self.folders or self.links):
            return path
        found = self.led.get(path)
        if found is not None:
            return found
        for link, target in tuple(self.links.items()):
            if inside(path, link):
                return self.where(target + path[len(link) :])
        for folder, more in tuple(self.folders.items()):
            if inside(path, folder):
                at = more + path[len(folder) :]
                if _exists(at):
                    return at
        return None if path in self.hidden else path

    def place(self, path: str) -> str:
        """Where a new file of this path is written: the path itself, if that overwrites nothing."""
        for link, target in tuple(self.links.items()):
            if inside(path, link):
                return self.place(target + path[len(link) :])
        there = self.was_there(path)
        if there:
            self._cover()
        if there or path in self.led or path in self.hidden:
            return self.new()
        return self.in_folder(path) or path

    def in_folder(self, path: str) -> str | None:
        """Where it would lie in a folder of the overlay alone; ``None``: the folder exists."""
        head = os.path.dirname(path)
        if not self.folders or (_exists(head) and head not in self.hidden):
            return None
        for folder, more in tuple(self.folders.items()):
            if inside(head, folder) and _exists(more + head[len(folder) :]):
                return more + path[len(folder) :]
        return None

    def leads(self, path: str, at: str) -> None:
        """Record where a file's content lies."""
        self.links.pop(path, None)
        if self.led.get(path) == at:
            return
        self.drop(path)
        if at == path:
            return
        if not any(inside(at, more) for more in self.folders.values()):
            self.led[path] = at

    def folder(self, path: str) -> str:
        """A folder in place of one that shall be filled: elsewhere, and found there."""
        with self.lock:
            return self._folder_of(path)

    def _folder_of(self, path: str) -> str:
        self.of_checkpoints.add(path)
        if self.is_own(path):
            at = path
        elif path in self.folders:
            return self.folders[path]
        else:
            outer = next((one for one in tuple(self.folders) if inside(path, one)), None)
            at = self.new() if outer is None else self.folders[outer] + path[len(outer) :]
            if outer is None:
                self.folders[path] = at
        os.makedirs(at, exist_ok=True)
        return at

    def drop(self, path: str) -> None:
        """What a path was led to is no more."""
        at = self.led.pop(path, None)
        if at is not None and self.is_own(at) and at not in self.led.values():
            with contextlib.suppress(OSError):
                _unlink(at)

    def forget(self, folder: str) -> None:
        """What was led to from inside a folder, and from itself, is no more."""
        for path in [path for path in tuple(self.led) if inside(path, folder)]:
            self.drop(path)
        for path in [path for path in tuple(self.links) if inside(path, folder)]:
            del self.links[path], self.drawn[path]
        for path in [path for path in tuple(self.folders) if inside(path, folder)]:
            more = self.folders.pop(path)
            if self.is_own(more):
                _rmtree(more, ignore_errors=True)

    def moved(self, here: str, there: str) -> None:
        """All that is known of a path, and of what lies inside, holds for another from now on."""
        tables: tuple[dict[str, Any], ...] = (self.led, self.folders, self.links, self.drawn)
        for known in (*tables, self.numbers):
            for path in [path for path in tuple(known) if inside(path, here)]:
                known[there + path[len(here) :]] = known.pop(path)
        for held in (self.made, self.of_checkpoints):
            for path in [path for path in tuple(held) if inside(path, here)]:
                held.remove(path)
                held.add(there + path[len(here) :])
        self.new_folders = [
            there + path[len(here) :] if inside(path, here) else path for path in self.new_folders
        ]

    def hide(self, path: str) -> None:
        """The script removes what may be there."""
        if self.was_there(path):
            self._cover()
            self.hidden.add(path)
        elif _exists(path):
            _unlink(path)

    def _cover(self) -> None:
        covers, self.covers = self.covers, lambda: None
        covers()

    def reveal(self, path: str) -> bool:
        """A folder that the script has removed is there again, empty; whether it was one."""
        if path not in self.hidden or not stat.S_ISDIR(_lstat(path).st_mode):
            return False
        self.hidden.discard(path)
        return True

    def was_there(self, path: str) -> bool:
        """A file or a folder is there, and was before the run."""
        try:
            found = _lstat(path)
        except (OSError, ValueError):
            return False
        kind = found.st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind)):
            return False
        if any(inside(path, cache) for cache in self._caches):
            return False
        # Adding to a folder changes its times: of those only what the script made is new.
        return (
            path not in self.new_folders if stat.S_ISDIR(kind) else found.st_ctime_ns < self._begun
        )

    def names(self, folder: str) -> list[str]:
        """Names in a folder, as the script sees them; none where it is not seen."""
        for link, target in tuple(self.links.items()):
            if inside(folder, link):
                return self.names(target + folder[len(link) :])
        names: dict[str, None] = {}
        if folder not in self.hidden:
            with contextlib.suppress(OSError):
                names = dict.fromkeys(_listdir(folder))
        for path in tuple(self.hidden):
            head, name = os.path.split(path)
            if head == folder:
                names.pop(name, None)
        at = self.where(folder)
        with contextlib.suppress(OSError):
            names |= dict.fromkeys(_listdir(at) if at not in (None, folder) else [])
        for path in (*self.led, *self.folders, *self.links):
            head, name = os.path.split(path)
            if head == folder:
                names[name] = None
        return list(names)

    def touches(self, folder: str) -> bool:
        """Something in this folder is not as it is there."""
        if self.where(folder) != folder:
            return True
        known = (*self.led, *self.folders, *self.links, *self.hidden)
        return any(inside(path, folder) for path in known)

    def is_own(self, path: str) -> bool:
        """It lies in our folder."""
        return bool(self._folder) and inside(path, self._folder)

    def new(self) -> str:
        """A new place for a file or a folder."""
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="memcalc-", dir=_place[0])
        return os.path.join(self._folder, str(next(self._numbers)))

    def close(self, is_marked: Callable[[str], bool]) -> None:
        """Remove what was kept, what is nothing without it, and folders that are empty then."""
        held = self.of_checkpoints | {os.path.dirname(p) for p in self.made if is_marked(p)}
        held &= set(self.new_folders)
        for folder in reversed(self.new_folders):
            if folder in held and os.path.dirname(folder) in self.new_folders:
                held.add(os.path.dirname(folder))
        for path in self.made:
            if is_marked(path) or any(inside(path, folder) for folder in held):
                with contextlib.suppress(OSError):
                    _unlink(path)
        for folder in reversed(self.new_folders):
            with contextlib.suppress(OSError):
                _rmdir(folder)
        if self._folder:
            _rmtree(self._folder, ignore_errors=True)


def _exists(path: str) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def full(path: Any) -> str | None:
    """The whole path; ``None``: it is none, such as the number of an open file."""
    if not isinstance(path, str | os.PathLike):
        return None
    with contextlib.suppress(TypeError, ValueError):
        found = os.path.abspath(os.fspath(path))
        return found if isinstance(found, str) else None
    return None


def inside(path: str, folder: str) -> bool:
    """A path is this folder, or lies in it."""
    return path.startswith(folder) and (len(path) == len(folder) or path[len(folder)] == os.sep)
