"""Functions of ``os``, ``shutil`` and ``open`` over a script's ``Overlay``."""

from __future__ import annotations

import builtins
import contextlib
import errno
import glob
import io
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.script.overlay import Overlay, failure, full

_BY_PATH = ("stat", "lstat", "access", "chmod", "chown", "utime", "readlink")
_SMALL = 64 << 20
"""Bytes of a file that is copied where a script may change it in place."""
_CHANGE = ("chmod", "chown", "utime")
_OPEN = os.open


def install(patches: Patches, overlay: Overlay) -> None:
    """Let all that the script reads and writes by path go through the overlay."""
    functions = _Functions(overlay)
    before = dict(vars(os))
    for name in _BY_PATH:
        patches.wrap(os, name, functions.through)
    for name in ("remove", "unlink"):
        patches.wrap(os, name, functions.remove)
    for name in ("rename", "replace"):
        patches.wrap(os, name, functions.rename)
    for name in ("mkdir", "rmdir", "symlink", "link", "listdir", "scandir"):
        patches.wrap(os, name, getattr(functions, name))
    patches.wrap(shutil, "rmtree", functions.rmtree)
    patches.wrap(builtins, "open", functions.open)
    patches.set(io, "open", builtins.open)
    _install_in_globbers(patches, before)


def _install_in_globbers(patches: Patches, before: dict[str, Any]) -> None:
    """Since Python 3.13, ``Path.glob`` goes by classes that keep functions of ``os``."""
    replaced = {id(value): name for name, value in before.items() if vars(os)[name] is not value}
    for owner in [value for value in vars(glob).values() if isinstance(value, type)]:
        for attribute, kept in list(vars(owner).items()):
            name = replaced.get(id(getattr(kept, "__func__", None)))
            if name is not None:
                patches.set(owner, attribute, staticmethod(vars(os)[name]))


def _by_path(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the whole path too; what is none, or lies in the mirror, stays as it is."""

    def around(self: _Functions, original: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
        named = None if kwargs.get("dir_fd") is not None else full("." if path is None else path)
        if named is None or self.files.is_own(named):
            return original(path, *args, **kwargs)
        return function(self, original, path, named, *args, **kwargs)

    return around


class _Functions:
    """Each takes the function that it stands for, and that one's arguments."""

    def __init__(self, overlay: Overlay) -> None:
        self.files = overlay

    def _found(self, path: Any, named: str) -> str:
        """Where the content of a path lies."""
        at = self.files.where(named)
        if at is None:
            raise failure(errno.ENOENT, path)
        return at

    def through(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Do it where the content lies; mode, owner and times of a user's file stay."""
        name, files = original.__name__, self.files
        named = None if kwargs.get("dir_fd") is not None else full(path)
        if named is None:
            return original(path, *args, **kwargs)
        if name == "access" and files.where(named) is None:
            return False
        if name in ("lstat", "readlink") and (link := files.link(named)) is not None:
            return original(link, *args, **kwargs)
        at = self._found(path, named)
        if at == named and name not in _CHANGE:
            return original(path, *args, **kwargs)
        users = files.users(at)
        if users is not None and name in _CHANGE:
            return None
        return original(users or at, *args, **kwargs)

    def open(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """As ``open``: what would destroy a file that was there writes elsewhere."""
        named = full(file) if kwargs.get("opener") is None and len(args) < 6 else None
        if named is None or not isinstance(mode, str):
            return original(file, mode, *args, **kwargs)
        files, at = self.files, self.files.where(named)
        if "r" in mode and at is None:
            raise failure(errno.ENOENT, file)
        if "x" in mode and at not in (None, named):
            raise failure(errno.EEXIST, file)
        if "w" in mode or at is None:
            at = files.place(named)
        elif "a" in mode or ("+" in mode and os.path.getsize(at) <= _SMALL):
            # Data that is mapped into memory to be read is often opened to be written as well.
            users = files.users(at)
            at = at if users is None else files.copy(named, users)
        if at == named:
            opened = original(file, mode, *args, **kwargs)
            if not ("r" in mode or files.is_own(named)) and os.path.isfile(named):
                files.made.add(named)
            return opened
        return original(
            file, mode, *args, **kwargs, opener=lambda _, flags: _OPEN(at, flags, 0o666)
        )

    @_by_path
    def remove(self, original: Any, path: Any, here: str, **kwargs: Any) -> Any:
        """As ``os.remove``: what was there before the run is hidden."""
        files = self.files
        if files.link(here) is None:
            at = self._found(path, here)
            if at == here and not files.was_there(here):
                return original(path)
            if os.path.isdir(at) and not os.path.islink(at):
                raise failure(errno.EISDIR, path)
        return files.hide(files.entry(here))

    def rename(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        here, there = full(source), full(target)
        if here is None or there is None or kwargs:
            return original(source, target, **kwargs)
        files = self.files
        here, there = files.entry(here), files.entry(there)
        link = files.link(here)
        at = link or self._found(source, here)
        if link is None and os.path.isdir(at):
            self._rename_folder(original, here, there)
        else:
            self._rename(original, here, there, at)
        files.moved(here, there)
        return None

    def _rename(self, original: Any, here: str, there: str, at: str) -> None:
        """Give a file another name: a user's stays, and has it for the script."""
        files = self.files
        users, place = files.users(at), files.place(there)
        if users is not None:
            files.borrow(users, there)
        elif at == here and place == there:
            original(here, there)
        else:
            shutil.move(at, files.covering(there))
        files.hide(here)

    def _rename_folder(self, original: Any, here: str, there: str) -> None:
        """The same with a folder, of which parts may lie in the mirror."""
        files = self.files
        mirrored = None if files.is_own(here) else files.in_mirror(here)
        if mirrored is not None and not files.lies_there(here):
            original(mirrored, files.covering(there))
        elif not files.was_there(here) and files.place(there) == there:
            if mirrored is not None:
                original(mirrored, files.covering(there))
            original(here, there)
        else:
            for root, _, names in list(os.walk(here)):
                to = there + root[len(here) :]
                os.makedirs(files.mirror + to, exist_ok=True)
                for name in names:
                    self.rename(original, os.path.join(root, name), os.path.join(to, name))
            files.clear(here)

    @_by_path
    def mkdir(self, original: Any, path: Any, named: str, *args: Any, **kwargs: Any) -> Any:
        files = self.files
        if os.path.lexists(named):
            raise failure(errno.EEXIST, path)
        place = files.place(named)
        original(path if place == named else place, *args, **kwargs)
        if place == named:
            files.new_folders.append(named)
        return None

    @_by_path
    def rmdir(self, original: Any, path: Any, named: str, **kwargs: Any) -> Any:
        files, at = self.files, self._found(path, named)
        if not os.path.isdir(at) or (at == named and not files.was_there(named)):
            return original(path, **kwargs)
        if files.names(named):
            raise failure(errno.ENOTEMPTY, path)
        return files.clear(named)

    @_by_path
    def rmtree(self, original: Any, path: Any, named: str, *args: Any, **kwargs: Any) -> Any:
        at = self.files.where(named)
        if at is None or not os.path.isdir(at) or os.path.islink(named):
            return original(path, *args, **kwargs)
        return self.files.clear(named)

    def symlink(self, original: Any, source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        """As ``os.symlink``: to what is not there it leads as well."""
        named = None if kwargs.get("dir_fd") is not None else full(target)
        files = self.files
        if named is None or files.is_own(named):
            return original(source, target, *args, **kwargs)
        leads_to = full(os.path.join(os.path.dirname(named), os.fsdecode(source)))
        if files.place(named) == named and leads_to is not None and not files.touches(leads_to):
            original(source, target, *args, **kwargs)
            files.made.add(named)
            return None
        if os.path.lexists(target):
            raise failure(errno.EEXIST, target)
        return files.draw(source, named)

    def link(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        """As ``os.link``; a user's file is shown under its second name."""
        here, there = full(source), full(target)
        if here is None or there is None:
            return original(source, target, **kwargs)
        files, at = self.files, self._found(source, here)
        if at == here and files.place(there) == there and not files.was_there(here):
            return original(source, target, **kwargs)
        return original(at, files.covering(there)) if files.is_own(at) else files.borrow(at, there)

    @_by_path
    def listdir(self, original: Any, path: Any, named: str) -> Any:
        if not self.files.touches(named):
            return original(path)
        self._found(path, named)
        return self.files.names(named)

    @_by_path
    def scandir(self, original: Any, path: Any, named: str) -> Any:
        if not self.files.touches(named):
            return original(path)
        return Scan(os.fspath(path or "."), self.listdir(None, path))


class Scan(contextlib.ExitStack):
    """As what ``os.scandir`` gives."""

    def __init__(self, folder: str, names: list[str]) -> None:
        super().__init__()
        self._entries = (_Entry(name, os.path.join(folder, name)) for name in names)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)


class _Entry:
    """As ``os.DirEntry``."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        return False

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return (os.stat if follow_symlinks else os.lstat)(self.path)
