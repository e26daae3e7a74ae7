"""A file of safetensors that was not written, opened again as ``safetensors.safe_open`` does."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import Any

import torch


class OpenedTensors(contextlib.AbstractContextManager["OpenedTensors"]):
    """Tensors of the file, which are loaded to a device when they are read."""

    def __init__(self, tensors: dict[str, Any], metadata: Any, device: Any = "cpu") -> None:
        self.tensors, self._metadata, self._device = tensors, metadata, device

    def on(self, device: Any) -> OpenedTensors:
        """Return the same file, opened for a device."""
        return OpenedTensors(self.tensors, self._metadata, device)

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return sorted(self.tensors)

    def offset_keys(self) -> list[str]:
        """Return the names as they lie in the file: those of larger elements first."""
        return sorted(
            self.tensors, key=lambda name: (-self.tensors[name].host.element_size(), name)
        )

    def metadata(self) -> Any:
        """Return what was saved beside the tensors."""
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        """Load a tensor."""
        found: torch.Tensor = self.tensors[name].loaded(self._device, {})
        return found

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """Load all tensors."""
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
