"""GPUs that a script finds: its own, and those of other processes, on which it can put nothing."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

_HIDES = "CUDA_VISIBLE_DEVICES"


def hide_from_libraries_alone() -> None:
    """A script does not find what hides the machine's own GPUs from libraries in this process."""
    if os.environ.get(_HIDES) == "":
        del os.environ[_HIDES]
        # Of C alone: ``os.environ`` does not show it.
        os.putenv(_HIDES, "")


def usable(named: int, processes: int | None) -> int:
    """On how many GPUs a process can put something.

    Args:
        named: of the machine, as far as the user said.
        processes: that a launcher starts there; ``None``: nobody launched it.
    """
    if processes is None or named > processes:
        return named
    # Each has one, of which the first process sees its own alone.
    return 1


def number_of(device: Any) -> int | None:
    """The number of a device that is named in any way; ``None`` where it has none."""
    named = device is None or isinstance(device, int)
    return device if named else torch.device(device).index


class Gpus:
    """Those that the script finds; of these the first ones are its own.

    Args:
        usable: on so many it can put something.
    """

    def __init__(self, usable: int = 1) -> None:
        self.count = self.usable = usable
        self._current: dict[int, int] = {}
        """By thread: the current one, where that is not the first."""

    def own(self, index: int) -> None:
        """Let it be used.

        Raises:
            torch.AcceleratorError: it is not the script's own.
        """
        if index >= self.usable:
            beside = f"has {self.usable} GPUs" if self.usable > 1 else "has one GPU, cuda:0"
            if self.count > self.usable:
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

    def current(self) -> int:
        """The one on which this thread makes what names none."""
        return self._current.get(threading.get_ident(), 0) if self._current else 0

    def use(self, index: int) -> None:
        """Make it the current one; a negative number changes nothing."""
        if index >= 0:
            self.own(index)
            if index or self._current:
                self._current[threading.get_ident()] = index

    def exchange(self, index: int) -> int:
        """Make it the current one; returns the one that was."""
        before = self.current()
        self.use(index)
        return before

    def on(self, index: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a call returns that is made while this one is current."""
        before = self.exchange(index)
        try:
            return call(*args, **kwargs)
        finally:
            self.use(before)

    def index_of(self, device: Any = None) -> int:
        """The number of a device that is named in any way, or of the current one."""
        index = number_of(device)
        if index is None or index < 0:
            return self.current()
        self.there(index)
        return index


class Each(Sequence[Any]):
    """The same for each of these GPUs, made when it is first asked for."""

    def __init__(self, gpus: Gpus, make: Callable[[int], Any]) -> None:
        self._gpus, self._make = gpus, functools.cache(make)

    def __len__(self) -> int:
        return self._gpus.count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._make(index % len(self))
