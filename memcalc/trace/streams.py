"""Streams of the simulated GPU: inert, but each storage knows the one it was made on.

The allocator keeps the blocks of each stream apart, so a communication stream's buffers never
reuse what the default stream has freed (c10/cuda/CUDACachingAllocator.cpp, ``get_free_block``).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from memcalc.trace.torch_private.engine import node_number


class Devices(Protocol):
    """Where there are several, each has streams of its own, of which one is current."""

    def current(self) -> int:
        """The number of the device that is current in this thread."""

    def exchange(self, index: int) -> int:
        """Make another the current one; returns the one that was."""


class _One:
    """There is one device."""

    def current(self) -> int:
        return 0

    def exchange(self, index: int) -> int:
        return 0


class Stream:
    """A stream with a number; the current one is a thread's own, as on CUDA."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.stream_id = next(_numbers[0])
        self.device_index = self.device_type = 0
        self._outer: list[Any] = []

    def __enter__(self) -> Stream:
        device = _devices[0].current()
        self._outer.append((device, current(self.device_index)))
        switch(self)
        return self

    def __exit__(self, *exc: object) -> None:
        device, stream = self._outer.pop()
        _currents()[self.device_index] = stream
        _devices[0].exchange(device)

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    synchronize = wait_event = wait_stream = record = wait = _nothing

    def record_event(self, event: Any = None) -> Any:
        """The event that was given, or a new one."""
        return event if event is not None else Event()

    def query(self) -> bool:
        """Everything is done at once."""
        return True


class Event:
    """An inert event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what ``torch.cuda.Event`` takes."""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    synchronize = record = wait = _nothing

    def query(self) -> bool:
        """Everything is done at once."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """Nothing takes time."""
        return 0.0


POOLS = 1 << 20
"""From here on the number of a stream stands for one within a private pool of memory."""
_numbers = [itertools.count()]
_local = threading.local()
_devices: list[Devices] = [_One()]
_switched = [False]
"""Some thread has left the default stream at some time."""
DEFAULT = Stream()


def renumber() -> None:
    """Count from 1 again, so that two runs of one program number alike."""
    _numbers[0] = itertools.count(1)


@contextlib.contextmanager
def of(devices: Devices) -> Iterator[None]:
    """Inside, there are these devices."""
    before, _devices[0] = _devices[0], devices
    try:
        yield
    finally:
        _devices[0] = before


def current_device() -> int:
    """The number of the device that is current in this thread."""
    return _devices[0].current()


def _currents() -> dict[int, Stream]:
    """This thread's streams, by device."""
    found: dict[int, Stream] | None = getattr(_local, "streams", None)
    if found is None:
        found = _local.streams = {}
    return found


def current(device: int | None = None) -> Stream:
    """The stream that this thread's operators run on.

    Args:
        device: on which; ``None``: on the current one.
    """
    index = _devices[0].current() if device is None else device
    return _currents().get(index, DEFAULT)


def switch(stream: Stream) -> None:
    """Run what follows in this thread on a stream, and its device."""
    _switched[0] = True
    _devices[0].exchange(stream.device_index)
    _currents()[stream.device_index] = stream


def switched() -> bool:
    """Whether some thread has left the default stream at some time."""
    return _switched[0]


@contextlib.contextmanager
def use(stream: Stream | None) -> Iterator[None]:
    """Run what is inside on a stream; ``None``: on the one that is current."""
    with stream if stream is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def packing() -> Iterator[None]:
    """Inside, a hook packs what a node saves (``torch.autograd.graph.saved_tensors_hooks``)."""
    before = getattr(_local, "packs", False)
    _local.packs = True
    try:
        yield
    finally:
        _local.packs = before


class BackwardStreams:
    """On which stream the autograd engine runs each node: the one its forward ran on.

    Source: torch/csrc/autograd/engine.cpp, ``evaluate_function`` (2.13).
    """

    def __init__(self) -> None:
        self._newest = -1
        self._by_node: dict[int, tuple[int, int]] = {}
        """The stream, and its device."""

    def made(self, sequence: int) -> None:
        """An operator ran outside backward; ``sequence`` numbers the next node.

        Without gradients no node is made, and the number stands. While a tensor is packed the
        node that saves it has its number, and its operator is still to come.
        """
        if sequence != self._newest and not getattr(_local, "packs", False):
            self._newest = sequence
            number = current().stream_id
            if number:
                self._by_node[sequence - 1] = number, _devices[0].current()

    def entered(self, node: Any) -> int:
        """The number of the stream that the engine switches to for a node; 0: for none.

        It records that stream on every gradient that another stream made, as it hands it over.
        Source: torch/csrc/autograd/input_buffer.cpp, ``InputBuffer::add`` (2.13).
        """
        if node is None or not self._by_node or current().stream_id:
            return 0
        number, device = self._by_node.get(node_number(node), (0, 0))
        return number if device == _devices[0].current() else 0

    def of(self, node: Any) -> int:
        """The number of the stream that runs now, inside this node or outside of all (None)."""
        if not _switched[0]:
            return 0
        return current().stream_id or self.entered(node)
