"""Repeats recorded calls of the allocator with PyTorch's own caching allocator.

Each replay runs in a new fork over the stub driver, in which CUDA has not started, so the fork can
have another card or other settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from memcalc.children.child import Speaker
from memcalc.engine import driver, simulated_gpu
from memcalc.engine.alloc_conf import parse_alloc_conf
from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError, UsageError
from memcalc.files.artifact import decode, encode
from memcalc.records.levels import Levels, highest
from memcalc.records.replay import Call, Card, Play, Refused, Replay, Wanted

NAME = "replay"
_HANDLE = 1 << 12
"""Handle of stream 1, and the difference to the next. PyTorch takes even handles, and CUDA reserves
the lowest ones."""


def make_player(ask: Callable[[dict[str, Any]], dict[str, Any]]) -> Play:
    """Return a function that replays allocator calls on several cards, by requests to ``ask``.

    The function raises UsageError if the calls contradict each other, and EstimateError if PyTorch
    refuses the settings.
    """

    def play(calls: Sequence[Call], cards: Sequence[Card], wanted: Wanted) -> tuple[Replay, ...]:
        request = {"calls": calls, "wanted": encode(wanted)}
        return tuple(decode(Replay, ask({**request, "card": encode(card)})) for card in cards)

    return play


def warm(*hint: str) -> None:
    """Open the stub driver and import PyTorch; called before forks."""
    driver.open_stub()
    import torch  # noqa: F401


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Replay allocator calls on a card; the entry point of a child process."""
    driver.open_stub()
    card, wanted = decode(Card, request["card"]), decode(Wanted, request["wanted"])
    found: dict[str, Any] = encode(_replay(request["calls"], card, wanted))
    return found


def _replay(calls: Sequence[Call], card: Card, wanted: Wanted) -> Replay:
    """Replay allocator calls in this process, over the stub driver on a card of this size."""
    import torch

    from memcalc.engine import torch_internals as internals

    simulated_gpu.resize(card.capacity, card.room)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    internals.allow_cuda_after_fork()
    stub.function("keep_up", None)()
    if card.conf:
        internals.set_allocator(card.conf)
    torch.cuda.init()
    if (allowed := parse_alloc_conf(card.conf).reservable_bytes(card.capacity)) is not None:
        # Where an import has started CUDA, PyTorch takes the share of the card that was there then.
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(allowed / total, 1.0))
    if wanted.snapshot:
        internals.start_history(with_lines=False)
    player = _Player(calls, wanted.levels)
    refused = player.play()
    return Replay(
        peaks=highest(*player.intervals),
        end=internals.levels(),
        intervals=tuple(player.intervals[1:]),
        retries=internals.retries(),
        refused=refused,
        levels=tuple(player.levels),
        snapshot=internals.stop_history() if wanted.snapshot else None,
    )


class _Player:
    """A replay of the calls, with the state that it needs."""

    def __init__(self, calls: Sequence[Call], follow: int | None) -> None:
        import torch

        from memcalc.engine import torch_internals as internals

        self._calls = calls
        self._follow = follow
        self._torch, self._internals = torch, internals
        named = [call for call in calls if isinstance(call[0], str)]
        self._shared = {call[1] for call in named if call[0] == "used_by"}
        """Storages that other streams use: they must be tensors, for ``record_stream``."""
        self._late = {call[1]: 0 for call in named if call[0] == "passed"}
        """Handles of the streams that are behind, by storage."""
        self._blocks: dict[int, Any] = {}
        self._streams = {0: torch.cuda.default_stream()}
        self._pools: dict[int, Any] = {}
        self._handlers: dict[str, Any] = {
            "mark": self._end_interval,
            "used_by": self._record_stream,
            "passed": self._release_stream,
            "empty_cache": torch.cuda.empty_cache,
            "keep_pool": self._make_private_pool,
        }
        self.intervals: list[Levels] = []
        """The peaks before the first mark, and after each mark."""
        self.levels: list[Levels] = []

    def play(self) -> Refused | None:
        """Replay all allocator calls; return the request that ran out of memory, or None."""
        refused: list[Refused] = []
        self._internals.watch_out_of_memory(
            lambda device, asked, total, free: refused.append(Refused(asked=asked, free=free))
        )
        follow, numbers = self._follow, itertools.count()
        try:
            for call in self._calls:
                if isinstance(call[0], str):
                    self._handlers[call[0]](*call[1:])
                    continue
                if call[1]:
                    self._allocate(*call)
                else:
                    self._free(call[0])
                if follow is not None and next(numbers) >= follow:
                    self.levels.append(self._internals.levels())
        except self._torch.cuda.OutOfMemoryError:
            return refused[-1]
        finally:
            self._end_interval()
        return None

    def _allocate(self, key: int, size: int, stream: int = 0) -> None:
        if key in self._blocks:
            raise UsageError(f"storage {key} is born twice")
        if stream not in self._pools and key not in self._shared:
            self._blocks[key] = self._internals.raw_alloc(size, self._stream(stream).cuda_stream)
            return
        cuda, pool = self._torch.cuda, self._pools.get(stream)
        with (
            cuda.stream(self._stream(stream)),
            cuda.use_mem_pool(pool) if pool is not None else contextlib.nullcontext(),
        ):
            uint8 = self._torch.uint8
            self._blocks[key] = self._torch.empty(size, dtype=uint8, device="cuda")

    def _free(self, key: int) -> None:
        block = self._blocks.pop(key, None)
        if block is None:
            raise UsageError(f"storage {key} dies, but is not alive")
        if isinstance(block, int):
            self._internals.raw_delete(block)

    def _stream(self, number: int) -> Any:
        if number not in self._streams:
            self._streams[number] = self._torch.cuda.ExternalStream(_HANDLE * number)
        return self._streams[number]

    def _end_interval(self) -> None:
        """Append the peaks since the last mark, and reset them."""
        self.intervals.append(self._internals.levels("peak"))
        self._torch.cuda.reset_peak_memory_stats()

    def _record_stream(self, key: int, stream: int) -> None:
        other = self._stream(stream)
        if key in self._late:
            self._late[key] = other.cuda_stream
            _hold_stream(other.cuda_stream, True)
        self._blocks[key].record_stream(other)

    def _release_stream(self, key: int) -> None:
        """Report the stream as done that a storage's free waits for."""
        _hold_stream(self._late[key], False)

    def _make_private_pool(self, stream: int) -> None:
        if not hasattr(self._torch.cuda, "MemPool"):
            raise EstimateError(
                f"PyTorch {self._torch.__version__} has no torch.cuda.MemPool, in which a private "
                "pool of this run is replayed: name 2.5 or newer with --torch."
            )
        self._pools[stream] = self._torch.cuda.MemPool()


def _hold_stream(stream: int, holds: bool) -> None:
    """Make the stub driver report a stream as busy, or as done."""
    hold = stub.function("hold_back", None)
    hold(ctypes.c_void_p(stream), int(holds))
