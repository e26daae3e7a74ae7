"""The GPUs that a script believes it has, whose memory the allocator keeps.

Every storage of the ledger goes through the allocator's model as it is born or dies: at once where
the GPU could be full, and otherwise when the script asks something of its memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.allocator.caching import DeviceOutOfMemoryError
from memcalc.allocator.replay import Op, to_pools
from memcalc.allocator.settings import AllocatorSettings
from memcalc.records.trace import Aside
from memcalc.script.one_gpu import OneGpu
from memcalc.script.pools import Pools
from memcalc.script.visible import Gpus
from memcalc.trace.ledger import Ledger

EVERYWHERE = -1
"""In place of a device's number: on all of them."""


class GpuMemory(Ledger):
    """A ledger whose storages live in models of PyTorch's allocator, one for each GPU.

    Args:
        settings: of the allocator.
        total: bytes of a device.
        kept: bytes of it that the driver keeps beside them.
        outside: bytes of it that the process holds outside the allocator.
        limit: bytes that the allocator may take; more ends in ``torch.OutOfMemoryError``.
        count: of the GPUs, all alike, on which the script can put something.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        *,
        total: int,
        kept: int = 0,
        outside: int,
        limit: int,
        count: int = 1,
    ) -> None:
        super().__init__()
        self.gpus = Gpus(count)
        self.several = count > 1
        self.total, self.kept = total, kept
        self.begins: Callable[[], None] | None = None
        """Called once, when something is first asked of the allocator."""
        self._each = [
            OneGpu(index, settings, total=total, outside=outside, limit=limit)
            for index in range(count)
        ]
        self._used: set[int] = set()
        self._seen = 0
        """How many events the models have seen."""
        self.pools = Pools(self._tell)
        self._pooled: dict[int, int] = {}
        """By the number of a stream within a pool: the device."""
        self.asides_on: list[int] = []
        """The device of each aside."""
        self.shared = False
        """Several threads of the script use the GPU."""
        self.lock = threading.RLock()
        """Held by the thread whose operator runs, where several threads have operators."""
        self._dead: list[int] = []
        """Storages that died in another thread meanwhile."""
        self._refused: tuple[int, int, int, int] | None = None
        """The last storage without room; how many events, marks and asides there were then."""

    def use(self, settings: AllocatorSettings) -> None:
        """Be allocators with these settings; they hold nothing yet."""
        for one in self._each:
            one.use(settings)

    def one(self, device: int = 0) -> OneGpu:
        """A GPU as it is after all events; of one that is another process's, the first."""
        self.gpus.there(device)
        self._begin()
        with self.lock:
            self.bury()
            self._catch_up()
        return self._each[device if device < len(self._each) else 0]

    def _begin(self) -> None:
        begins, self.begins = self.begins, None
        if begins is not None:
            begins()

    def log(self, event: int) -> None:
        """Write an event down; a birth that finds no room raises ``torch.OutOfMemoryError``."""
        if self.begins is not None:
            self._begin()
        if event >= 0:
            entry = self.entries[event]
            entry.stream = self.pools.stream_of(entry.stream)
            one = self._each[entry.device]
            self._used.add(entry.device)
            if not one.surely_takes(entry.bytes):
                self._catch_up()
                if not one.takes_now():
                    self._see(event)
                    self._seen += 1
                    one.look()
        super().log(event)

    def birth(self, tensor: torch.Tensor, name: str, node: Any) -> None:
        """A storage was seen; what died before may have lain at its place."""
        if self._dead:
            self.bury()
        super().birth(tensor, name, node)

    def _death(self, key: int) -> None:
        """It waits for the operator of another thread."""
        if not self.shared:
            super()._death(key)
            return
        if not self.lock.acquire(blocking=False):
            self._dead.append(key)
            return
        try:
            super()._death(key)
        finally:
            self.lock.release()

    def bury(self) -> None:
        """Write down what died in other threads."""
        while self._dead:
            super()._death(self._dead.pop(0))

    def _catch_up(self) -> None:
        for event in self.events[self._seen :]:
            self._see(event)
        self._seen = len(self.events)

    def _see(self, event: int) -> None:
        number = event if event >= 0 else ~event
        one = self._each[self.entries[number].device]
        if event >= 0:
            one.blocks[number] = self._allocate(one, number)
        else:
            one.model.free(one.blocks.pop(number))

    def _allocate(self, one: OneGpu, number: int) -> Any:
        entry, model = self.entries[number], one.model
        retries, told = model.retries, len(model.trace)
        try:
            return model.allocate(entry.bytes, entry.stream)
        except DeviceOutOfMemoryError as error:
            self._refused = number, len(self.events), len(self.marks), len(self.asides)
            raise torch.OutOfMemoryError(one.words(error.why)) from None
        finally:
            # What the allocator has given back by itself: all where there was no room, or a part.
            if model.retries > retries:
                self._aside(one.index, "empty_cache")
            else:
                for what, _, size, stream in model.trace[told:]:
                    if what == "segment_free":
                        self._aside(one.index, "give_back", stream=stream, bytes=size)

    def _aside(self, device: int, what: str, **of: int) -> None:
        self.asides.append(Aside(index=len(self.events), what=what, **of))
        self.asides_on.append(device)

    def count_refused(self) -> None:
        """Write down the request that found no room, when it did: this much was needed at least."""
        if self._refused is None:
            return
        number, event, marks, asides = self._refused
        self._refused = None
        self._catch_up()
        self._seen += 2
        self.events[event:event] = [number, ~number]
        self.event_tags[event:event] = [self.entries[number].tag] * 2
        self.marks[marks:] = [replace(one, index=one.index + 2) for one in self.marks[marks:]]
        self.asides[asides:] = [replace(one, index=one.index + 2) for one in self.asides[asides:]]

    def used_by(self, tensor: torch.Tensor, stream: int) -> None:
        """Another stream uses a tensor (``Tensor.record_stream``)."""
        number = self.held_by(tensor)
        if number is not None and stream != self.entries[number].stream:
            device = self.entries[number].device
            self._aside(device, "used_by", storage=number, stream=stream)
            one = self.one(device)
            one.model.record_stream(one.blocks[number], stream)

    def address(self, storage: int) -> int | None:
        """Where a storage lies, by its key; ``None``: it has no memory on a GPU."""
        number = None if storage in self._empty else self._live.get(storage, (None,))[0]
        if number is None:
            return None
        block = self.one(self.entries[number].device).blocks.get(number)
        return None if block is None else int(block.address)

    def _tell(self, what: Op, stream: int) -> None:
        """Something of a private pool."""
        device = self._pooled.setdefault(stream, self.gpus.current())
        self._aside(device, what.value, stream=stream)
        to_pools(self.one(device).model, what, stream)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``: of all devices."""
        self._aside(EVERYWHERE, "empty_cache")
        self.one()
        for one in self._each:
            one.model.empty_cache()

    @property
    def used(self) -> list[int]:
        """Devices on which there was something, in their order."""
        return sorted(self._used)
