"""Objects that a simulated run saved and loads again, pickled as by ``torch.save``.

Storages are kept on the host: the GPU's without most of their values, in untouched pages.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.serialization import default_restore_location, location_tag
from torch.utils._pytree import tree_flatten, tree_unflatten

_OVERHEAD = 1024
"""Bytes of a file beside its tensors and its pickle, about."""


class SavedObject:
    """An object as ``torch.save`` keeps it: pickled, and each storage once."""

    def __init__(self, value: Any) -> None:
        self._storages: dict[tuple[str, int], torch.UntypedStorage] = {}
        """Copies on the host, by where each storage was and its address there."""
        self._pickled = io.BytesIO()
        self._parts: tuple[list[Any], Any] | None = None
        """Parts of a value that pickle does not take, and how they make it up."""
        pickler = pickle.Pickler(self._pickled, protocol=2)
        pickler.persistent_id = self._copy_storage  # type: ignore[method-assign]
        try:
            with warnings.catch_warnings():
                # Of typed storages, which tensors are pickled with.
                warnings.simplefilter("ignore")
                pickler.dump(value)
        except Exception:
            # Another pickle module might take it: a part that is none is loaded as it is now.
            self._storages.clear()
            self._pickled.truncate(0)
            parts, structure = tree_flatten(value)
            if not (len(parts) == 1 and parts[0] is value):
                parts = [SavedObject(part) for part in parts]
            self._parts = parts, structure

    def _copy_storage(self, value: Any) -> Any:
        """Replace a storage in the pickle by its key, and keep one copy of it on the host."""
        typed = isinstance(value, torch.storage.TypedStorage)
        if not typed and not isinstance(value, torch.UntypedStorage):
            return None
        storage = value.untyped() if typed else value
        key = location_tag(storage), storage.data_ptr()
        if key not in self._storages:
            on_gpu = storage.device.type == "cuda"
            self._storages[key] = storage.cpu() if on_gpu else storage.clone()
        return key, value.dtype if typed else None

    @property
    def bytes(self) -> int:
        """The size of the file that it would be saved to, about."""
        parts, _ = self._parts or ([], None)
        held = sum(part.bytes for part in parts if isinstance(part, SavedObject))
        held += sum(storage.nbytes() for storage in self._storages.values())
        return held + self._pickled.getbuffer().nbytes + _OVERHEAD

    def load(self, location: Any) -> Any:
        """Unpickle the object again, with its tensors where ``map_location`` wants them."""
        if self._parts is not None:
            parts, structure = self._parts
            loaded = (p.load(location) if isinstance(p, SavedObject) else p for p in parts)
            return tree_unflatten(list(loaded), structure)
        placed: dict[Any, Any] = {}

        def load_storage(saved: Any) -> Any:
            key, dtype = saved
            if key not in placed:
                placed[key] = _place(self._storages[key], key[0], location)
            storage = placed[key]
            if dtype is None:
                return storage
            return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

        self._pickled.seek(0)
        unpickler = pickle.Unpickler(self._pickled)
        unpickler.persistent_load = load_storage  # type: ignore[method-assign]
        return unpickler.load()


def _place(storage: torch.UntypedStorage, was: str, wanted: Any) -> Any:
    """Move a storage to the device that ``map_location`` names, by the rules of ``torch.load``."""
    if callable(wanted):
        found = wanted(storage, was)
        return default_restore_location(storage, was) if found is None else found
    if isinstance(wanted, Mapping):
        wanted = wanted.get(was, was)
    elif isinstance(wanted, int):
        wanted = f"cuda:{wanted}"
    return default_restore_location(storage, was if wanted is None else str(wanted))


class SavedTensors(contextlib.AbstractContextManager["SavedTensors"]):
    """An opened file of safetensors."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], metadata: Any, device: Any = "cpu"
    ) -> None:
        self._tensors, self._metadata, self._device = tensors, metadata, device

    @property
    def bytes(self) -> int:
        """The size of the file, about."""
        return sum(tensor.nbytes for tensor in self._tensors.values()) + _OVERHEAD

    def open(self, device: Any) -> SavedTensors:
        """Open the same file for a device."""
        return SavedTensors(self._tensors, self._metadata, device)

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        """Return the names in the file's order of tensors: larger elements first."""
        return sorted(self._tensors, key=lambda name: (-self._tensors[name].element_size(), name))

    def metadata(self) -> Any:
        """Return the metadata saved with the tensors."""
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor on the device."""
        return self._tensors[name].to(self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors on the device."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> _Slice:
        """Return a tensor that may be read in parts."""
        return _Slice(self.get_tensor(name))


class _Slice:
    """A tensor of the file that may be read in parts."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index]

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return the name that safetensors writes for the tensor's dtype."""
        written: bytes = importlib.import_module("safetensors.torch").save(
            {"one": torch.empty(0, dtype=self._tensor.dtype, device="cpu")}
        )
        name: str = json.loads(written[8:])["one"]["dtype"]
        return name
