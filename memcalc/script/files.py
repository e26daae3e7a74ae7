"""Files that a simulated run did not write, and its script finds again all the same.

A script that saves a checkpoint often looks at it, renames it, copies it or removes it. Files of
that name that were there before are covered by it while the script runs, and stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Any

from memcalc.script.patches import Patches

_MARK = b"saved in a simulated run, number %08d"
_LONG = len(_MARK % 0)
NOT_WRITTEN = "checkpoints are not written"
"""What an answer says of all that is saved."""


class UnwrittenFiles:
    """What a script has saved, by path; what it saved to a buffer, by a mark in that buffer."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._numbered: list[Any] = []

    def put(self, file: Any, content: Any) -> None:
        """Keep what was saved."""
        path = _path(file)
        if path is not None:
            self._kept[path] = content
            return
        file.write(_MARK % len(self._numbered))
        self._numbered.append(content)

    def get(self, file: Any) -> Any:
        """What was saved there; ``None``: nothing was."""
        path = _path(file)
        if path is not None:
            return self._kept.get(path)
        return self._marked(file)

    def install(self, patches: Patches) -> None:
        """Let the script find its files by the functions of ``os`` and ``shutil``."""
        for name in ("stat", "lstat"):
            patches.wrap(os, name, self._stat)
        for name in ("remove", "unlink"):
            patches.wrap(os, name, self._remove)
        for name in ("rename", "replace"):
            patches.wrap(os, name, self._rename)
        for name in ("copyfile", "copy", "copy2"):
            patches.wrap(shutil, name, self._copy)
        for name, answer in (("chmod", None), ("utime", None), ("chown", None), ("access", True)):
            patches.wrap(os, name, functools.partial(self._leave, answer))
        patches.wrap(os, "listdir", self._list)
        patches.wrap(os, "scandir", self._scan)

    def _marked(self, file: Any) -> Any:
        try:
            at = file.tell()
            head = file.read(_LONG)
            file.seek(at)
        except (AttributeError, OSError, ValueError):
            return None
        before, _, number = bytes(head).rpartition(b" ")
        if not before or before != _MARK.rpartition(b" ")[0]:
            return None
        return self._numbered[int(number)]

    def _stat(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(path, *args, **kwargs)
        except FileNotFoundError:
            kept = _path(path) in self._kept and kwargs.get("dir_fd") is None
            if not kept:
                raise
            return _described()

    def _remove(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("dir_fd") is None and self._kept.pop(_path(path) or "", None) is not None:
            return
        original(path, *args, **kwargs)

    def _leave(self, answer: Any, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is None and _path(path) in self._kept:
            return answer
        return original(path, *args, **kwargs)

    def _rename(self, original: Any, source: Any, target: Any, **kwargs: Any) -> None:
        here, there = _path(source), _path(target)
        if here in self._kept and there is not None:
            self._kept[there] = self._kept.pop(here)
            return
        original(source, target, **kwargs)
        self._follow_folder(here, there)

    def _follow_folder(self, here: str | None, there: str | None) -> None:
        if here is None or there is None:
            return
        for path in [path for path in self._kept if path.startswith(here + os.sep)]:
            self._kept[there + path[len(here) :]] = self._kept.pop(path)

    def _copy(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        here = _path(source)
        if here not in self._kept:
            return original(source, target, **kwargs)
        if os.path.isdir(target):
            target = os.path.join(target, os.path.basename(here))
        self.put(target, self._kept[here])
        return target

    def _inside(self, folder: Any) -> list[str]:
        wanted = _path("." if folder is None else folder)
        return [name for head, name in map(os.path.split, self._kept) if head == wanted and wanted]

    def _list(self, original: Any, path: Any = None) -> Any:
        found = original(path)
        more = [] if isinstance(path, bytes) else self._inside(path)
        return found + [name for name in more if name not in found]

    def _scan(self, original: Any, path: Any = None) -> Any:
        more = [] if isinstance(path, bytes) else self._inside(path)
        return _Scan(original(path), path, more) if more else original(path)


class _Scan:
    """As what ``os.scandir`` gives."""

    def __init__(self, real: Any, folder: Any, more: list[str]) -> None:
        self._real, self._folder, self._more = real, folder, more

    def __iter__(self) -> Iterator[Any]:
        seen = set()
        for entry in self._real:
            seen.add(entry.name)
            yield entry
        for name in self._more:
            if name not in seen:
                yield _Entry(
                    name, os.path.join("." if self._folder is None else self._folder, name)
                )

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder."""
        self._real.close()


class _Entry:
    """As ``os.DirEntry``, of a file that was not written."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """It is."""
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """It is not."""
        return False

    def is_symlink(self) -> bool:
        """It is not."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Of a file of this user."""
        return _described()


def _described() -> os.stat_result:
    return os.stat_result((stat.S_IFREG | 0o644, 0, 0, 1, os.getuid(), os.getgid(), _LONG, 0, 0, 0))


def _path(file: Any) -> str | None:
    """Where a file lies; ``None``: it is in memory."""
    if not isinstance(file, str | os.PathLike):
        if isinstance(file, io.BytesIO) or not isinstance(getattr(file, "name", None), str):
            return None
        file = file.name
    with contextlib.suppress(TypeError, ValueError):
        found = os.path.abspath(os.fspath(file))
        return found if isinstance(found, str) else None
    return None
