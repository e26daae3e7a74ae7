"""GPUs that a script finds: its own, and those of other processes, on which it can put nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

_HIDES = "CUDA_VISIBLE_DEVICES"


def hide_from_libraries_alone() -> None:
    """A script does not find what hides the machine's own GPUs from libraries in this process."""
    if os.environ.get(_HIDES) == "":
        del os.environ[_HIDES]
        # Of C alone: ``os.environ`` does not show it.
        os.putenv(_HIDES, "")


class Gpus:
    """The first is the script's own."""

    def __init__(self) -> None:
        self.count = 1

    def own(self, index: int) -> None:
        """Let it be used.

        Raises:
            torch.AcceleratorError: it is not the script's own.
        """
        if index > 0:
            beside = "has one GPU, cuda:0"
            if self.count > 1:
                beside = f"has {self.count} GPUs, of which this process has cuda:0"
            raise torch.AcceleratorError(
                f"CUDA error: invalid device ordinal: cuda:{index} was asked for, "
                f"and the simulated machine {beside}"
            )

    def there(self, index: int) -> None:
        """Let it be looked at.

        Raises:
            torch.AcceleratorError: there are fewer.
        """
        if index >= self.count:
            self.own(index)

    def exchange(self, index: int) -> int:
        """Make it the current one; returns the one that was."""
        self.own(index)
        return 0


class Each(Sequence[Any]):
    """The same for each of these GPUs: of the others' nobody asks more than that it is there."""

    def __init__(self, gpus: Gpus, value: Any) -> None:
        self._gpus, self._value = gpus, value

    def __len__(self) -> int:
        return self._gpus.count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return (self._value,) * len(range(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._value
