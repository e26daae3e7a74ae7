"""Checkpoints of a simulated run: not written, but they can be loaded again."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.engine.torch_internals import storage_key
from memcalc.script import checkpoint_marks as marks
from memcalc.script.namespace import is_inside
from memcalc.script.opened_tensors import OpenedTensors

NOT_WRITTEN = "checkpoints are not written"
"""What an answer says of all that is saved."""
_open, _rename = open, os.rename


class UnwrittenFiles:
    """Keeps what a script saves in memory, and a file with a mark in the place of it."""

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
        """Copy marks without the room behind them, and move files as on one file system."""
        patches.also(self._close)
        patches.wrap(shutil, "copyfile", self._copy)
        for name in ("rename", "replace"):
            patches.wrap(os, name, self._rename)

    def put(self, file: Any, content: Any, size: int = 0) -> None:
        """Keep what was saved in a path, or something open, and would have so many bytes."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._kept[number] = content
            if isinstance(file, str | bytes | os.PathLike):
                self._forget_what_is_gone()
                self._mark(file, number, size)
            else:
                file.write(marks.mark(number))

    def get(self, file: Any, missing: Any = None) -> Any:
        """Return what was saved there; ``missing`` if nothing was."""
        is_path = isinstance(file, str | os.PathLike)
        number = (marks.number_of if is_path else marks.number_in)(file)
        if number is None and is_path:
            number = self._over.get(_identity(file))
        return missing if number is None else self._kept.get(number, missing)

    def _mark(self, path: Any, number: int, size: int) -> None:
        if not is_inside():
            if _is_old(path):
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
        number = marks.number_of(source)
        if number is None or os.path.isdir(target):
            return original(source, target, **kwargs)
        with self._lock:
            self._mark(target, number, os.stat(source).st_size)
        return target

    def _rename(self, original: Any, source: Any, target: Any, **kwargs: Any) -> None:
        number = None if kwargs or is_inside() else marks.number_of(source)
        if number is not None and _is_old(target):
            self._mark(target, number, 0)
            os.unlink(source)
            return
        _move(original, source, target, **kwargs)
        if not (kwargs or is_inside()):
            files = [os.path.join(at, name) for at, _, names in os.walk(target) for name in names]
            for path in files or [target]:
                if marks.number_of(path) is not None:
                    marks.note_mark(path)

    def _forget_what_is_gone(self) -> None:
        for number, places in list(self._places.items()):
            if all(_is_gone(number, *place) for place in places):
                self._close_places(number)
                if number not in self._over.values():
                    del self._kept[number]

    def _close(self) -> None:
        for number in list(self._places):
            self._close_places(number)

    def _close_places(self, number: int) -> None:
        for descriptor, before in self._places.pop(number):
            if _is_same(descriptor, before):
                os.close(descriptor)


def _identity(path: Any) -> tuple[int, int]:
    """Return the device and inode of a file; zeros: there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    return status.st_dev, status.st_ino


def _is_old(path: Any) -> bool:
    return os.path.isfile(path) and marks.number_of(path) is None


def _is_same(descriptor: int, before: os.stat_result) -> bool:
    """A script may close descriptors that it has not opened, and get their numbers itself."""
    try:
        return os.path.samestat(os.fstat(descriptor), before)
    except OSError:
        return False


def _is_gone(number: int, descriptor: int, before: os.stat_result) -> bool:
    """Return whether a file was deleted, or other things were written to it."""
    if not _is_same(descriptor, before):
        return False
    is_deleted = not os.fstat(descriptor).st_nlink
    return is_deleted or os.pread(descriptor, marks.LENGTH, 0) != marks.mark(number)


def _move(original: Any, source: Any, target: Any, **kwargs: Any) -> None:
    """As ``os.rename``: also between overlays, and of a folder that was there before."""
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


_NOTHING = object()


class _Kept:
    """A tensor of a checkpoint: where it was, which storage it is a view of, and what of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self.host = tensor.detach().to("cpu", copy=True)
        self.plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and (
            tensor.layout is torch.strided
        )
        self.storage = storage_key(tensor) if self.plain else id(self)
        self.elements = self.host.numel()
        if self.plain:
            self.elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.view = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()

    def loaded(self, location: Any, storages: dict[Any, torch.Tensor]) -> torch.Tensor:
        """The tensor where it is wanted; tensors of one storage share it again."""
        wanted = _location(location, self.device)
        if wanted.type != "cuda":
            return self.host
        if not self.plain:
            return self.host.to(wanted)
        key = self.storage, self.host.dtype
        if key not in storages:
            storages[key] = _arrived(self.host, self.elements, wanted)
        return storages[key].as_strided(*self.view)


class _Object:
    """An object of a checkpoint, such as a whole module: its tensors are held on the host."""

    def __init__(self, value: Any) -> None:
        self._devices: dict[int, torch.device] = {}
        self.tensors: list[torch.Tensor] = []
        with _copying(self._to_host):
            self._value = copy.deepcopy(value)

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        host = tensor.detach().to("cpu", copy=True)
        self._devices[host.data_ptr()] = tensor.device
        self.tensors.append(host)
        return host

    def loaded(self, location: Any) -> Any:
        """Return a copy with each tensor where it is wanted."""

        def to_device(host: torch.Tensor) -> torch.Tensor:
            was = self._devices.get(host.data_ptr(), host.device)
            return host.detach().to(_location(location, was), copy=True)

        with _copying(to_device):
            return copy.deepcopy(self._value)


@contextlib.contextmanager
def _copying(change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Have ``copy.deepcopy`` change tensors; parameters stay parameters."""

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if id(tensor) not in memo:
            parameter = type(tensor) is torch.nn.Parameter
            made = change(tensor.data if parameter else tensor)
            memo[id(tensor)] = torch.nn.Parameter(made, tensor.requires_grad) if parameter else made
        return memo[id(tensor)]  # type: ignore[no-any-return]

    with Patches() as inside:
        for kind in (torch.Tensor, torch.nn.Parameter):
            inside.set(kind, "__deepcopy__", copied)
        yield


def install(patches: Patches) -> UnwrittenFiles:
    """Keep checkpoints in place of writing them, and say so; returns the files."""
    files = UnwrittenFiles()
    files.install(patches)
    checkpoints = _Checkpoints(files, patches)
    patches.wrap(torch, "save", checkpoints.save)
    patches.wrap(torch, "load", checkpoints.load)
    patches.when_imported("safetensors", checkpoints.opened)
    patches.when_imported("safetensors.torch", checkpoints.safetensors)
    return files


class _Checkpoints:
    """Functions in place of those that save and load."""

    def __init__(self, files: UnwrittenFiles, patches: Patches) -> None:
        self._files = files
        self._patches = patches

    def save(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        self._put(f, _kept(obj))

    def _put(self, file: Any, content: Any) -> None:
        self._files.put(file, content, _size(content, {}))
        self._patches.say(NOT_WRITTEN, source_lines.line())

    def load(
        self, original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        found = self._files.get(f, _NOTHING)
        if isinstance(found, OpenedTensors):
            found = found.tensors
        if found is not _NOTHING:
            return _loaded(found, map_location, {})
        return original(f, map_location, *args, **kwargs)

    def safetensors(self, module: Any) -> None:

        def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            self._put(filename, OpenedTensors(_kept(dict(tensors)), metadata))

        self._patches.set_everywhere(module, "save_file", save_file)

    def opened(self, module: Any) -> None:
        """Act on a module whose functions open files, and write them."""
        real = module.safe_open

        def safe_open(
            filename: Any, framework: str = "pt", device: Any = "cpu", **more: Any
        ) -> Any:
            if (kept := self._files.get(filename)) is not None:
                return kept.on(device)
            return real(filename, framework, device, **more)

        self._patches.set_everywhere(module, "safe_open", safe_open)


def _arrived(host: torch.Tensor, elements: int, wanted: torch.device) -> torch.Tensor:
    """A storage of the device that was read from a file."""
    if elements != host.numel() or not host.is_contiguous():
        return torch.empty(elements, dtype=host.dtype, device=wanted)
    return host.view(-1).to(wanted)


def _location(asked: Any, was: torch.device) -> torch.device:
    """Where ``map_location`` wants a tensor that was somewhere."""
    if asked is None:
        return was
    if isinstance(asked, int):
        return torch.device("cuda", asked)
    if isinstance(asked, str | torch.device):
        return torch.device(asked)
    name = "cuda:0" if was.type == "cuda" else "cpu"
    if isinstance(asked, Mapping):
        return torch.device(asked.get(name, name))
    try:
        placed = asked(torch.UntypedStorage(0), name)
    except Exception:
        # It moves storages to the GPU, of which there are none.
        return torch.device("cuda")
    return was if placed is None else placed.device


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Kept(value)
    if isinstance(value, _WITH_TENSORS):
        with contextlib.suppress(Exception):
            return _Object(value)
    return _mapped(value, _kept)


_WITH_TENSORS = (torch.nn.Module, torch.optim.Optimizer)
"""Objects that are saved whole, and hold tensors."""


_ABOUT = 1024
"""Bytes that a file has beside its tensors, about."""


def _size(content: Any, storages: dict[Any, int]) -> int:
    """Bytes that a checkpoint would take: storages are saved whole, and once."""
    if isinstance(content, OpenedTensors):
        content = content.tensors
    if isinstance(content, _Object):
        storages |= {id(one): one.nbytes for one in content.tensors}
    if isinstance(content, _Kept):
        storages[content.storage] = content.elements * content.host.element_size()
    elif isinstance(content, Mapping):
        content = list(content.values())
    for value in content if isinstance(content, list | tuple) else ():
        _size(value, storages)
    return sum(storages.values()) + _ABOUT


def _loaded(value: Any, location: Any, storages: dict[Any, torch.Tensor]) -> Any:
    """A checkpoint as it is loaded again; what was read of its storages is noted."""
    if isinstance(value, _Kept):
        return value.loaded(location, storages)
    if isinstance(value, _Object):
        return value.loaded(location)
    return _mapped(value, lambda item: _loaded(item, location, storages))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        mapped = {key: change(item) for key, item in value.items()}
        try:
            made = type(value)(mapped)
        except TypeError:
            return mapped
        return made
    return type(value)(change(item) for item in value) if type(value) in (list, tuple) else value
