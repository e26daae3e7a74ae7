"""Checkpoints of a simulated run: not written, but they can be loaded again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Mapping
from typing import Any

import torch

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.script import checkpoint_marks as marks
from memcalc.script.namespace import is_inside
from memcalc.script.saved_objects import SavedObject, SavedTensors

NOT_WRITTEN = "checkpoints are not written"
"""The sentence of an answer on everything that is saved."""
_open, _rename = open, os.rename


class UnwrittenFiles:
    """Saved objects of a script, in memory, with a marked file for each."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._next = 0
        self._places: dict[int, list[tuple[int, os.stat_result]]] = {}
        """Descriptors of files with a mark, which tell when none has it any more."""
        self._over: dict[tuple[int, int], int] = {}
        """What was saved over files from before, where no namespace protects them."""
        self._lock = threading.RLock()
        """Checkpoints may be saved by threads."""

    def install(self, patches: Patches) -> None:
        """Patch shutil and os to copy and move the marks of checkpoints."""
        patches.also(self._close)
        patches.wrap(shutil, "copyfile", self._copy)
        for name in ("rename", "replace"):
            patches.wrap(os, name, self._rename)

    def put(self, file: Any, content: Any, size: int = 0) -> None:
        """Keep a saved object in memory, and write a mark to its path or open file."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._kept[number] = content
            if isinstance(file, str | bytes | os.PathLike):
                self._forget_files()
                self._mark(file, number, size)
            else:
                file.write(marks.mark(number))

    def get(self, file: Any, missing: Any = None) -> Any:
        """Return the object that was saved to a path or open file, or ``missing``."""
        is_path = isinstance(file, str | os.PathLike)
        number = (marks.read_number if is_path else marks.number_in)(file)
        if number is None and is_path:
            number = self._over.get(_identity(file))
        return missing if number is None else self._kept.get(number, missing)

    def _mark(self, path: Any, number: int, size: int) -> None:
        """Write a checkpoint's mark to a path; the file has the full size but takes no space."""
        if not is_inside():
            if _has_no_mark(path):
                before = self._over.get(key := _identity(path), number)
                self._over[key] = number
                if before != number and before not in self._places:
                    self._kept.pop(before, None)
                return
            marks.note_mark(path)
        with _open(path, "w+b") as opened:
            opened.write(marks.mark(number))
            # It takes no room: nothing is written after the mark.
            with contextlib.suppress(OSError):
                opened.truncate(max(size, marks.LENGTH))
            opened.flush()
            held = os.dup(opened.fileno())
        self._places.setdefault(number, []).append((held, os.fstat(held)))

    def _copy(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        """Replace ``shutil.copyfile``: of a file with a mark, copy only the mark."""
        number = marks.read_number(source)
        if number is None or os.path.isdir(target):
            return original(source, target, **kwargs)
        with self._lock:
            self._mark(target, number, os.stat(source).st_size)
        return target

    def _rename(self, original: Any, source: Any, target: Any, **kwargs: Any) -> None:
        """Replace ``os.rename``: keep marks, and never write one over a file from before."""
        number = None if kwargs or is_inside() else marks.read_number(source)
        if number is not None and _has_no_mark(target):
            self._mark(target, number, 0)
            os.unlink(source)
            return
        _move(original, source, target, **kwargs)
        if not (kwargs or is_inside()):
            files = [os.path.join(at, name) for at, _, names in os.walk(target) for name in names]
            for path in files or [target]:
                if marks.read_number(path) is not None:
                    marks.note_mark(path)

    def _forget_files(self) -> None:
        """Drop saved objects whose files were all deleted or overwritten."""
        for number, places in list(self._places.items()):
            if all(_is_gone(number, *place) for place in places):
                self._close_files(number)
                if number not in self._over.values():
                    del self._kept[number]

    def _close(self) -> None:
        """Close the descriptors of all files with a mark."""
        for number in list(self._places):
            self._close_files(number)

    def _close_files(self, number: int) -> None:
        for descriptor, before in self._places.pop(number):
            if _is_same(descriptor, before):
                os.close(descriptor)


def _identity(path: Any) -> tuple[int, int]:
    """Return the device and inode of a file, or zeros if it is missing."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    return status.st_dev, status.st_ino


def _has_no_mark(path: Any) -> bool:
    return os.path.isfile(path) and marks.read_number(path) is None


def _is_same(descriptor: int, before: os.stat_result) -> bool:
    """Return False if the script has closed the descriptor, or its number is another file's now."""
    try:
        return os.path.samestat(os.fstat(descriptor), before)
    except OSError:
        return False


def _is_gone(number: int, descriptor: int, before: os.stat_result) -> bool:
    """Return True if a checkpoint's file was deleted or overwritten."""
    if not _is_same(descriptor, before):
        return False
    is_deleted = not os.fstat(descriptor).st_nlink
    return is_deleted or os.pread(descriptor, marks.LENGTH, 0) != marks.mark(number)


def _move(original: Any, source: Any, target: Any, **kwargs: Any) -> None:
    """Rename a path as ``os.rename`` does; copy and delete it between overlays."""
    try:
        (original if kwargs else _rename)(source, target, **kwargs)
    except OSError as error:
        if error.errno != errno.EXDEV or kwargs or os.path.isdir(target):
            raise
        if os.path.isdir(source) and not os.path.islink(source):
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
            shutil.copy2(source, target, follow_symlinks=False)
            os.unlink(source)


def install(patches: Patches) -> UnwrittenFiles:
    """Patch torch.save, torch.load and safetensors to keep checkpoints in memory, not on disk."""
    files = UnwrittenFiles()
    files.install(patches)
    checkpoints = _Checkpoints(files, patches)
    patches.wrap(torch, "save", checkpoints.save)
    patches.wrap(torch, "load", checkpoints.load)
    patches.when_imported("safetensors", checkpoints.replace_opening)
    patches.when_imported("safetensors.torch", checkpoints.replace_saving)
    return files


class _Checkpoints:
    """Replacements of the functions that save and load."""

    def __init__(self, files: UnwrittenFiles, patches: Patches) -> None:
        self._files = files
        self._patches = patches

    def save(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        self._save(f, SavedObject(obj))

    def _save(self, file: Any, content: SavedObject | SavedTensors) -> None:
        self._files.put(file, content, content.bytes)
        self._patches.say(NOT_WRITTEN, source_lines.find_line())

    def load(
        self, original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        found = self._files.get(f)
        if isinstance(found, SavedObject):
            return found.load(map_location)
        return original(f, map_location, *args, **kwargs)

    def replace_saving(self, module: Any) -> None:
        """Patch ``safetensors.torch.save_file`` to keep tensors in memory."""

        def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            kept = {name: one.detach().to("cpu", copy=True) for name, one in tensors.items()}
            self._save(filename, SavedTensors(kept, metadata))

        self._patches.set_everywhere(module, "save_file", save_file)

    def replace_opening(self, module: Any) -> None:
        """Patch ``safetensors.safe_open`` to open files that this run saved."""
        real = module.safe_open

        def safe_open(
            filename: Any, framework: str = "pt", device: Any = "cpu", **more: Any
        ) -> Any:
            if isinstance(kept := self._files.get(filename), SavedTensors):
                return kept.open(device)
            return real(filename, framework, device, **more)

        self._patches.set_everywhere(module, "safe_open", safe_open)
