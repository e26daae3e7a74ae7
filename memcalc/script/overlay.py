"""An overlay for a script's files: files from before the run stay unchanged.

A temporary folder mirrors the tree of files. What covers a file from before the run lies there
under the same path, and so does every checkpoint; new files lie where the script puts them. What
the script removes is remembered until the run ends.
"""

import contextlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
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
_REAL = "/proc/self/root"
"""A link in the mirror that leads through here is a user's file under another name; other links
are the script's."""
_lstat, _listdir, _rmtree, _symlink = os.lstat, os.listdir, shutil.rmtree, os.symlink
_unlink, _rmdir, _readlink, _makedirs = os.unlink, os.rmdir, os.readlink, os.makedirs
_open = open
_place: list[str | None] = [None]
"""Where folders of overlays are made; ``None``: where all temporary ones are."""


def use(folder: str) -> None:
    """Make folders of overlays in this one, which whoever started this process removes."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _place[0] = folder


class Overlay:
    """Maps each path to where its content lies."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        """Files and folders from before the run that the script removed."""
        self.made: set[str] = set()
        """New files that the script opened for writing, where it put them."""
        self.new_folders: list[str] = []
        """Folders that the script created there, in order."""
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
        self.mirror = tempfile.mkdtemp(prefix="memcalc-", dir=_place[0])
        self._has_links = False

    # ---- where things lie

    def where(self, path: str) -> str | None:
        """Where a path's content lies; ``None``: the script removed it."""
        path = self.resolved(path)
        if self.is_own(path):
            return path
        return self.in_mirror(path) or (None if self.is_hidden(path) else path)

    def in_mirror(self, path: str) -> str | None:
        """What lies in the mirror for a path."""
        at = self.mirror + path
        return at if _mode(at) else None

    def resolved(self, path: str) -> str:
        """The path that the script's own links lead to."""
        for head in _heads(path) if self._has_links else ():
            at = self.link(head)
            if at is not None:
                target = os.path.join(os.path.dirname(head), _readlink(at))
                return self.resolved(os.path.abspath(target) + path[len(head) :])
        return path

    def entry(self, path: str) -> str:
        """The path in the folder that the script's own links lead to."""
        folder, name = os.path.split(path)
        return os.path.join(self.resolved(folder), name)

    def link(self, path: str) -> str | None:
        """A link of the script's in the mirror; ``None``: this path is none."""
        at = self.mirror + path
        return at if stat.S_ISLNK(_mode(at)) and self.users(at) is None else None

    def users(self, at: str) -> str | None:
        """The user's file behind a place; ``None``: the script may change what lies there."""
        if self.is_own(at):
            with contextlib.suppress(OSError):
                target = _readlink(at)
                return target[len(_REAL) :] if inside(target, _REAL) else None
            return None
        return at if self.was_there(at) else None

    def place(self, path: str) -> str:
        """Where a new file of this path is written: the path itself, if that overwrites nothing."""
        path = self.resolved(path)
        if self.is_own(path):
            return path
        folder, hidden = os.path.dirname(path), self.is_hidden(path)
        there = not hidden and self.was_there(path)
        if there:
            self._cover()
        if there or hidden or self.in_mirror(path):
            return self.covering(path)
        return self.covering(path) if not _mode(folder) and self.in_mirror(folder) else path

    def covering(self, path: str) -> str:
        """The place in the mirror for a path, with the folder that it is in."""
        if self.is_own(path):
            return path
        at, folder = self.mirror + path, os.path.dirname(path)
        if self.where(folder) is not None:
            _makedirs(os.path.dirname(at), exist_ok=True)
        if stat.S_ISLNK(_mode(at)):
            _unlink(at)
        return at

    def copy(self, path: str, users: str) -> str:
        """A copy of a user's file for the script to change; returns where it lies."""
        with _open(users, "rb") as source:
            at = self.covering(path)
            with _open(at, "wb") as target:
                shutil.copyfileobj(source, target)
        return at

    def borrow(self, users: str, path: str) -> None:
        """Show a file under another path without copying it."""
        _symlink(_REAL + users, self.covering(path))

    def draw(self, target: Any, path: str) -> None:
        """Make a link of the script's in the mirror."""
        _symlink(target, self.covering(path))
        self._has_links = True

    # ---- what the script does

    def hide(self, path: str) -> None:
        """The script removes what may be there."""
        if (at := self.in_mirror(path)) is not None:
            _unlink(at)
        if not self.lies_there(path):
            return
        if self.was_there(path):
            self._cover()
            self.hidden.add(path)
        else:
            _unlink(path)

    def clear(self, folder: str) -> None:
        """The script removes a folder with all that is in it."""
        _rmtree(self.mirror + folder, ignore_errors=True)
        if not self.lies_there(folder):
            return
        if not self.was_there(folder):
            _rmtree(folder)
            return
        self._cover()
        self.hidden.add(folder)
        for path in [path for path in self.made if inside(path, folder)]:
            with contextlib.suppress(OSError):
                _unlink(path)

    def moved(self, here: str, there: str) -> None:
        """All that is known of a path, and of what lies inside, holds for another from now on."""
        for held in (self.made, self.of_checkpoints):
            for path in [path for path in held if inside(path, here)]:
                held.remove(path)
                held.add(there + path[len(here) :])
        self.new_folders = [
            there + path[len(here) :] if inside(path, here) else path for path in self.new_folders
        ]

    def folder(self, path: str) -> str:
        """A folder of the mirror in place of one that shall be filled with a checkpoint."""
        with self.lock:
            self.of_checkpoints.add(path)
            at = path if self.is_own(path) else self.mirror + path
            _makedirs(at, exist_ok=True)
            return at

    def _cover(self) -> None:
        covers, self.covers = self.covers, lambda: None
        covers()

    # ---- what is seen

    def is_own(self, path: str) -> bool:
        """It lies in the mirror."""
        return inside(path, self.mirror)

    def is_hidden(self, path: str) -> bool:
        """What was there before is out of sight."""
        return any(inside(path, gone) for gone in tuple(self.hidden))

    def lies_there(self, path: str) -> bool:
        """Something is at this very place, and not out of sight."""
        return not self.is_hidden(path) and bool(_mode(path))

    def was_there(self, path: str) -> bool:
        """A file or a folder is there, and was before the run."""
        try:
            found = _lstat(path)
        except (OSError, ValueError):
            return False
        kind = found.st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind)):
            return False
        if self.is_own(path) or any(inside(path, cache) for cache in self._caches):
            return False
        # Adding to a folder changes its times: of those only what the script made is new.
        return (
            path not in self.new_folders if stat.S_ISDIR(kind) else found.st_ctime_ns < self._begun
        )

    def names(self, folder: str) -> list[str]:
        """Names in a folder, as the script sees them; none where it is not seen."""
        folder = self.resolved(folder)
        names: dict[str, None] = {}
        if not self.is_hidden(folder):
            with contextlib.suppress(OSError):
                names = dict.fromkeys(_listdir(folder))
        for path in tuple(self.hidden):
            head, name = os.path.split(path)
            if head == folder:
                names.pop(name, None)
        with contextlib.suppress(OSError):
            names |= dict.fromkeys(_listdir(self.mirror + folder))
        return list(names)

    def touches(self, folder: str) -> bool:
        """Something in this folder is not as it is there."""
        return self.where(folder) != folder or any(inside(path, folder) for path in self.hidden)

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
        _rmtree(self.mirror, ignore_errors=True)


def _mode(path: str) -> int:
    """Of what is at a path; 0: nothing is."""
    try:
        return _lstat(path).st_mode
    except (OSError, ValueError):
        return 0


def _heads(path: str) -> Iterator[str]:
    """A path's folders from the root on, and itself."""
    at = path.find(os.sep, 1)
    while at > 0:
        yield path[:at]
        at = path.find(os.sep, at + 1)
    yield path


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


def failure(code: int, path: Any) -> OSError:
    """What the system raises, of the class that this code has."""
    return OSError(code, os.strerror(code), path)
