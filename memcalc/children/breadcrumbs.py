"""The last known place in a child's program, in shared memory that survives its crash."""

from __future__ import annotations

import mmap

SIZE = 512


class Breadcrumbs:
    """Remembers the current module and operator; cheap enough to do at every operator.

    Made by the parent before it forks: both see the same memory.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SIZE)

    def drop(self, module: str, op: str) -> None:
        """Remember this place, forget the last."""
        text = f"{op}\0{module}\0".encode()[:SIZE]
        self._map[: len(text)] = text

    def clear(self) -> None:
        """Forget the last place."""
        self._map[:] = bytes(SIZE)

    def where(self) -> str:
        """The last place in words, such as `` in model.layers.0, at addmm``; empty if unknown."""
        op, module, *_ = (*self._map[:].split(b"\0"), b"")
        place = f" in {module.decode(errors='replace')}" if module else ""
        return f"{place}, at {op.decode(errors='replace')}" if op else place

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()
