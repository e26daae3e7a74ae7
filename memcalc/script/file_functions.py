"""Functions of ``os``, ``shutil`` and ``open`` over a script's ``Overlay``."""

from __future__ import annotations

import builtins
import contextlib
import errno
import glob
import io
import os
import shutil
from collections.abc import Iterator
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.script.overlay import Overlay, full, inside

_BY_PATH = ("stat", "lstat", "access", "chmod", "chown", "utime", "readlink")
_SMALL = 64 << 20
"""Bytes of a file that is copied where a script may change it in place."""
_RMDIR, _OPEN = os.rmdir, os.open


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


class _Functions:
    """Each takes the function that it stands for, and that one's arguments."""

    def __init__(self, overlay: Overlay) -> None:
        self._files = overlay

    def _found(self, path: Any, given: dict[str, Any]) -> tuple[str | None, str]:
        """A path in full, and where its content lies; ``None``: the overlay knows none like it."""
        named = None if given.get("dir_fd") is not None else full(path)
        if named is None:
            return None, ""
        at = self._files.where(named)
        if at is None:
            raise _missing(path)
        return named, at

    def through(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Do it where the content lies."""
        name = original.__name__
        if name == "access":
            named = full(path)
            if named is not None and self._files.where(named) is None:
                return False
        elif name in ("lstat", "readlink") and (link := full(path)) in self._files.links:
            return original(self._files.drawn[str(link)], *args, **kwargs)
        named, at = self._found(path, kwargs)
        return original(path if named in (None, at) else at, *args, **kwargs)

    def open(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """As ``open``: what would destroy a file that was there writes elsewhere."""
        named = full(file) if kwargs.get("opener") is None and len(args) < 6 else None
        if named is None or not isinstance(mode, str):
            return original(file, mode, *args, **kwargs)
        files, at = self._files, self._files.where(named)
        updates = "r" in mode and "+" in mode
        if "r" in mode:
            if at is None:
                raise _missing(file)
            if updates and at == named and self._is_small_and_was_there(named):
                at = files.new()
                shutil.copyfile(named, at)
        elif "w" in mode or at is None:
            at = files.place(named)
        elif "x" in mode and at != named:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
        elif "a" in mode and at == named and files.was_there(named):
            at = files.new()
            shutil.copyfile(named, at)
        if "r" in mode and at == named:
            return original(file, mode, *args, **kwargs)
        if at == named:
            opened = original(file, mode, *args, **kwargs)
            if os.path.isfile(named):
                files.made.add(named)
            return opened
        opened = original(
            file, mode, *args, **kwargs, opener=lambda _, flags: _OPEN(at, flags, 0o666)
        )
        if "r" not in mode or updates:
            files.leads(named, at)
        return opened

    def _is_small_and_was_there(self, path: str) -> bool:
        """Data that is mapped into memory to be read is often opened to be written as well."""
        return self._files.was_there(path) and os.path.getsize(path) <= _SMALL

    def remove(self, original: Any, path: Any, **kwargs: Any) -> Any:
        """As ``os.remove``: what was there before the run is hidden."""
        here = None if kwargs.get("dir_fd") is not None else full(path)
        if here is None:
            return original(path, **kwargs)
        files = self._files
        if files.links.pop(here, None) is not None:
            return files.hide(here)
        _, at = self._found(path, kwargs)
        if at == here and not files.was_there(here):
            return original(path)
        if os.path.isdir(at):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if here in files.led:
            files.drop(here)
        elif files.is_own(at):
            original(at)
        return files.hide(here)

    def rename(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        """As ``os.rename`` and ``os.replace``."""
        here, there = full(source), full(target)
        if here is None or there is None or kwargs:
            return original(source, target, **kwargs)
        files = self._files
        if here in files.links:
            files.links[there], files.drawn[there] = files.links.pop(here), files.drawn.pop(here)
            return None
        _, at = self._found(source, {})
        if os.path.isdir(at):
            return self._rename_folder(original, here, there, at)
        place = files.place(there)
        own = files.is_own(at)
        if not own and files.was_there(at):
            # The user's file stays, and has another name for the script.
            files.led.pop(here, None)
            files.leads(there, at)
            files.hide(here)
        elif at == here and place == there:
            original(source, target)
            files.moved(here, there)
        else:
            place = place if place != there else files.new()
            shutil.move(at, place)
            files.led.pop(here, None)
            files.leads(there, place)
            files.moved(at, place)
            files.hide(here)
        return None

    def _rename_folder(self, original: Any, here: str, there: str, at: str) -> None:
        files = self._files
        if at == here and files.was_there(here):
            self._rename_of_user(here, there)
        elif at == here:
            original(here, there)
        elif here not in files.folders:
            place = files.place(there)
            files.folders[there] = place = place if place != there else files.new()
            original(at, place)
            files.moved(at, place)
        files.moved(here, there)

    def _rename_of_user(self, here: str, there: str) -> None:
        """A folder of the user's stays, and all that the script sees in it has another name."""
        files = self._files
        for root, _, names in os.walk(here):
            more = files.folders[_moved(root, here, there)] = files.new()
            os.mkdir(more)
            for name in names:
                path = os.path.join(root, name)
                at = files.led.pop(path, None) or files.where(path)
                if at is not None:
                    files.led[_moved(path, here, there)] = at
        self._clear(here)

    def _clear(self, folder: str) -> None:
        """The script removes all that is in a folder, and the folder."""
        files = self._files
        for root, _, names in os.walk(folder, topdown=False):
            for name in names:
                files.hide(os.path.join(root, name))
            self.rmdir(_RMDIR, root)

    def mkdir(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """As ``os.mkdir``."""
        named = None if kwargs.get("dir_fd") is not None else full(path)
        if named is None:
            return original(path, *args, **kwargs)
        files = self._files
        if files.reveal(named):
            return None
        at = files.where(named)
        if at not in (None, named):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        inner = files.in_folder(named) or named
        original(inner, *args, **kwargs)
        files.new_folders.append(inner)
        return None

    def rmdir(self, original: Any, path: Any, **kwargs: Any) -> Any:
        """As ``os.rmdir``."""
        named, at = self._found(path, kwargs)
        files = self._files
        if named is None or files.is_own(at) or not files.was_there(named):
            return original(path if named is None else at, **kwargs)
        if files.names(named):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        files.hidden.add(named)
        return None

    def rmtree(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """As ``shutil.rmtree``."""
        named, files = full(path), self._files
        if named is None or kwargs.get("dir_fd") is not None or files.is_own(named):
            return original(path, *args, **kwargs)
        at = files.where(named)
        if at is None or not os.path.isdir(at) or os.path.islink(named):
            return original(path, *args, **kwargs)
        if at != named:
            original(at, ignore_errors=True)
        files.forget(named)
        if os.path.isdir(named):
            self._clear(named)
        return None

    def symlink(self, original: Any, source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        """As ``os.symlink``: to what is not there it leads as well."""
        named = None if kwargs.get("dir_fd") is not None else full(target)
        if named is None:
            return original(source, target, *args, **kwargs)
        files = self._files
        leads_to = full(os.path.join(os.path.dirname(named), os.fsdecode(source)))
        if files.place(named) == named and leads_to is not None and not files.touches(leads_to):
            original(source, target, *args, **kwargs)
            files.made.add(named)
            return None
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        files.drawn[named] = files.new()
        original(source, files.drawn[named])
        files.links[named] = leads_to or ""
        return None

    def link(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        """As ``os.link``."""
        here, there = full(source), full(target)
        if here is None or there is None:
            return original(source, target, **kwargs)
        _, at = self._found(source, {})
        place = self._files.place(there)
        if at == here and place == there:
            return original(source, target, **kwargs)
        place = place if place != there else self._files.new()
        original(at, place)
        self._files.leads(there, place)
        return None

    def listdir(self, original: Any, path: Any = None) -> Any:
        """As ``os.listdir``."""
        named = full("." if path is None else path)
        if named is None or not self._files.touches(named):
            return original(path)
        self._found(named, {})
        return self._files.names(named)

    def scandir(self, original: Any, path: Any = None) -> Any:
        """As ``os.scandir``."""
        named = full("." if path is None else path)
        if named is None or not self._files.touches(named):
            return original(path)
        self._found(named, {})
        return Scan("." if path is None else os.fspath(path), self._files.names(named))


def _moved(path: str, here: str, there: str) -> str:
    return there + path[len(here) :] if inside(path, here) else path


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


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
