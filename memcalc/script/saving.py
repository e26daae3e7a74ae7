"""Checkpoints of a simulated run: not written, but they can be loaded again."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.engine.torch_internals import storage_key
from memcalc.script import file_functions
from memcalc.script.overlay import Overlay, full

_MARK = b"saved in a simulated run, number %08d"
_open = open
_LONG = len(_MARK % 0)
NOT_WRITTEN = "checkpoints are not written"
"""What an answer says of all that is saved."""


class UnwrittenFiles:
    """What a script has saved, by the mark that it finds in place of it."""

    def __init__(self) -> None:
        self.overlay = Overlay()
        self._kept: dict[int, Any] = {}
        self._next = 0
        self._named: set[int] = set()
        """What was saved under a name, and is forgotten when no file has its mark any more."""

    def install(self, patches: Patches) -> None:
        """Let the script find its files by the functions of ``os`` and ``shutil``."""
        patches.also(lambda: self.overlay.close(lambda path: _number(path) is not None))
        file_functions.install(patches, self.overlay)
        patches.wrap(shutil, "copyfile", self._copy)

    def put(self, file: Any, content: Any, size: int = 0) -> None:
        """Keep what was saved in a path, or something open, and would have so many bytes."""
        with self.overlay.lock:
            self._put(file, content, size)

    def _put(self, file: Any, content: Any, size: int) -> None:
        number, self._next = self._next, self._next + 1
        self._kept[number] = content
        path, overlay = full(file), self.overlay
        if path is not None:
            self._forget_what_is_gone()
            self._mark(path, number, size)
            self._named.add(number)
            return
        beside = full(getattr(file, "name", None))
        if beside is not None and overlay.where(beside) == beside:
            if overlay.was_there(beside):
                # Opened to be changed in place, and too large to have been copied.
                return
            overlay.of_checkpoints.add(os.path.dirname(beside))
            overlay.made.add(beside)
        file.write(_MARK % number)

    def get(self, file: Any, missing: Any = None) -> Any:
        """What was saved there; ``missing`` if nothing was."""
        path = full(file)
        at = self.overlay.where(path) if path is not None else None
        number = _marked(file) if path is None else _number(at) if at is not None else None
        return missing if number is None else self._kept.get(number, missing)

    def _mark(self, path: str, number: int, size: int) -> None:
        if not self.overlay.is_own(path):
            self.overlay.of_checkpoints.add(os.path.dirname(path))
        with _open(self.overlay.covering(self.overlay.resolved(path)), "wb") as opened:
            opened.write(_MARK % number)
            # It takes no room: nothing is written after the mark.
            with contextlib.suppress(OSError):
                opened.truncate(max(size, _LONG))

    def _copy(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        here, there = full(source), full(target)
        at = self.overlay.where(here) if here is not None else None
        number = _number(at) if at is not None and there is not None else None
        if number is None or there is None or at is None:
            return original(source, target, **kwargs)
        with self.overlay.lock:
            self._mark(there, number, os.stat(at).st_size)
        return target

    def _forget_what_is_gone(self) -> None:
        mirrored = os.walk(self.overlay.mirror)
        found = {_number(os.path.join(at, name)) for at, _, names in mirrored for name in names}
        gone = self._named - found
        self._named -= gone
        for number in gone:
            del self._kept[number]


def _marked(file: Any) -> int | None:
    """The number of the mark that comes next in an open file."""
    try:
        at = file.tell()
        head = file.read(_LONG)
        file.seek(at)
    except (AttributeError, OSError, ValueError):
        return None
    before, _, number = bytes(head).rpartition(b" ") if isinstance(head, bytes) else (b"", b"", b"")
    return int(number) if before and before == _MARK.rpartition(b" ")[0] else None


def _number(path: str) -> int | None:
    """The number of the mark that a file begins with."""
    try:
        with _open(path, "rb") as opened:
            return _marked(opened)
    except OSError:
        return None


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
        if isinstance(found, _Tensors):
            found = found.tensors
        if found is not _NOTHING:
            return _loaded(found, map_location, {})
        return original(f, map_location, *args, **kwargs)

    def safetensors(self, module: Any) -> None:

        def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            self._put(filename, _Tensors(_kept(dict(tensors)), metadata))

        self._patches.set_everywhere(module, "save_file", save_file)

    def opened(self, module: Any) -> None:
        """Act on a module whose ``safe_open`` opens files."""
        real = module.safe_open

        def safe_open(
            filename: Any, framework: str = "pt", device: Any = "cpu", **more: Any
        ) -> Any:
            if (kept := self._files.get(filename)) is not None:
                return kept.on(device)
            path = full(filename)
            at = self._files.overlay.where(path) if path is not None else None
            return real(at or filename, framework, device, **more)

        self._patches.set_everywhere(module, "safe_open", safe_open)


class _Tensors(contextlib.AbstractContextManager["_Tensors"]):
    """As an opened file of safetensors."""

    def __init__(self, tensors: dict[str, _Kept], metadata: Any, device: Any = "cpu") -> None:
        self.tensors, self._metadata, self._device = tensors, metadata, device

    def on(self, device: Any) -> _Tensors:
        """The same, opened for a device."""
        return _Tensors(self.tensors, self._metadata, device)

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        return sorted(self.tensors)

    def offset_keys(self) -> list[str]:
        """The same as they lie in the file: those of larger elements first."""
        return sorted(
            self.tensors, key=lambda name: (-self.tensors[name].host.element_size(), name)
        )

    def metadata(self) -> Any:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name].loaded(self._device, {})

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    get_slice = get_tensor


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
    return _Kept(value) if isinstance(value, torch.Tensor) else _mapped(value, _kept)


_ABOUT = 1024
"""Bytes that a file has beside its tensors, about."""


def _size(content: Any, storages: dict[Any, int]) -> int:
    """Bytes that a checkpoint would take: storages are saved whole, and once."""
    if isinstance(content, _Tensors):
        content = content.tensors
    if isinstance(content, torch.nn.Module):
        content = {name: _kept(tensor) for name, tensor in content.state_dict().items()}
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
    if isinstance(value, torch.nn.Module):
        made = copy.deepcopy(value)
        return made if location is None else made.to(_location(location, torch.device("cpu")))
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
