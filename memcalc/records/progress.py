"""The progress of long work, such as fetching a PyTorch, and the listeners for it."""

import contextlib
from collections.abc import Callable, Iterator

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """The progress of one piece of work."""

    text: str
    fraction: float | None = None
    """From 0 to 1, when it is done; ``None``: unknown."""


Report = Callable[[Progress], None]
_listeners: list[Report] = []


@contextlib.contextmanager
def listening(report: Report) -> Iterator[None]:
    """Send the progress of this process to ``report`` inside the block."""
    _listeners.append(report)
    try:
        yield
    finally:
        _listeners.remove(report)


def tell(progress: Progress) -> None:
    """Send progress to the newest listener, if any."""
    if _listeners:
        _listeners[-1](progress)
