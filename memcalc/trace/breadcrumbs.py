"""Where the simulated program is, kept in a small file so that it outlives a crash."""

from __future__ import annotations

import mmap

SIZE = 512


class Breadcrumbs:
    """Writes the current module and operator; cheap enough to do at every operator."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    def drop(self, module: str, op: str) -> None:
        """Remember this place, forget the last."""
        text = f"{op}\0{module}\0".encode()[:SIZE]
        self._map[: len(text)] = text


def create(path: str) -> None:
    """Make an empty trail."""
    with open(path, "wb") as file:
        file.write(bytes(SIZE))


def read(path: str) -> str:
    """Say the last place in words, such as `` in model.layers.0, at addmm``; empty if unknown."""
    try:
        with open(path, "rb") as file:
            op, module, *_ = file.read(SIZE).split(b"\0")
    except (OSError, ValueError):
        return ""
    place = f" in {module.decode(errors='replace')}" if module else ""
    return f"{place}, at {op.decode(errors='replace')}" if op else place
