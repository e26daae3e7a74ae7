"""How far something that takes minutes is, such as fetching a PyTorch, and who is told of it."""

import contextlib
from collections.abc import Callable, Iterator

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How far it is."""

    text: str
    fraction: float | None = None
    """From 0 to 1, when it is done; ``None``: unknown."""


Report = Callable[[Progress], None]
_listeners: list[Report] = []


@contextlib.contextmanager
def listening(report: Report) -> Iterator[None]:
    """Be told by whatever this process does meanwhile, in any of its threads."""
    _listeners.append(report)
    try:
        yield
    finally:
        _listeners.remove(report)


def tell(progress: Progress) -> None:
    """Tell whoever began to listen last."""
    if _listeners:
        _listeners[-1](progress)
