"""The last known place in a child's program, in shared memory that survives its crash."""

from __future__ import annotations

import mmap

SIZE = 512


class Breadcrumbs:
    """Remembers the module that runs; cheap enough to do for every module.

    Made by the parent before it forks: both see the same memory.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SIZE)

    def drop(self, module: str) -> None:
        """Remember this place, forget the last."""
        text = module.encode()[: SIZE - 1] + b"\0"
        self._map[: len(text)] = text

    def clear(self) -> None:
        """Forget the last place."""
        self._map[:] = bytes(SIZE)

    def where(self) -> str:
        """The last place in words, such as `` in model.layers.0``; empty if unknown."""
        module, _, _ = self._map[:].partition(b"\0")
        return f" in {module.decode(errors='replace')}" if module else ""

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()
