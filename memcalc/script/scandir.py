"""What ``os.scandir`` gives, of folders whose files do not all lie there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


class Scan:
    """As what ``os.scandir`` gives."""

    def __init__(self, folder: str, names: list[str]) -> None:
        self._entries = (_Entry(name, os.path.join(folder, name)) for name in names)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """There is nothing to close."""


class _Entry:
    """As ``os.DirEntry``."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """It is a file."""
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """It is a folder."""
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        """It is a symbolic link."""
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        """It is not: those are Windows'."""
        return False

    def inode(self) -> int:
        """Its number."""
        return os.lstat(self.path).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What is known of it."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self.path, follow_symlinks=follow_symlinks)
        return os.lstat(self.path)
