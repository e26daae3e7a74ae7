"""The caching allocator's history as a timeline: every block's birth and death, and its name."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from memcalc.engine import operators
from memcalc.engine.recorder import Interval, Notes, Owner
from memcalc.errors import EstimateError
from memcalc.records.trace import Aside, Component, Mark, Reading, Storage

_NEVER = 1 << 62


class Timeline:
    """Blocks in order of birth, and all events in order.

    Args:
        recorder: what was noted while the program ran.
        entries: the allocator's history of one GPU, as ``torch.cuda.memory._snapshot`` has it.
        line_of: which line of the user's asked for a block, by the frames in its entry.
    """

    def __init__(
        self,
        recorder: Notes,
        entries: Sequence[dict[str, Any]],
        line_of: Callable[[Sequence[dict[str, Any]]], str] = lambda frames: "",
    ) -> None:
        self._line_of = line_of
        self.refused: list[Refused] = []
        """Requests that found no room, in order."""
        self.events: list[int] = []
        self.asides: list[Aside] = []
        self.blocks: list[_Block] = []
        self._recorder = recorder
        self._live: dict[int, int] = {}
        self._streams: dict[int, int] = {0: 0}
        self._late: dict[int, int] = {}
        """Bytes at addresses that were given up while another stream was using them."""
        self._lately: set[int] = set()
        self._completed: list[tuple[int, int]] = []
        """From this moment on, so many bytes of those are free."""
        told = _told(recorder)
        for at, entry in enumerate(entries):
            action = entry["action"]
            if action in ("segment_free", "segment_unmap"):
                self._emptied()
            if action == "oom":
                self._refuse(entry)
            if action == "free_completed" and entry["addr"] in self._late:
                self._completed.append((len(self.events), self._late.pop(entry["addr"])))
            if action not in ("alloc", "free_requested"):
                continue
            while told and told[-1][0] <= len(self.events):
                self._tell(told.pop())
            if action == "alloc":
                self._born(entry)
            else:
                following = entries[at + 1] if at + 1 < len(entries) else {}
                self._dies(entry, following)
        while told:
            self._tell(told.pop())
        for event in self.events[slice(*recorder.cublas)]:
            if event < 0:
                self.blocks[~event].component = Component.WORKSPACES
        if recorder.profiler is not None:
            self._name_operators()
        self._settle_guesses()
        self._check()

    def _born(self, entry: dict[str, Any]) -> None:
        self._live[entry["addr"]] = len(self.blocks)
        stream = self._streams.setdefault(entry["stream"], len(self._streams))
        block = _Block(entry["addr"], entry["size"], len(self.events), stream)
        block.line = self._line_of(entry.get("frames", ()))
        self.blocks.append(block)
        self.events.append(len(self.blocks) - 1)

    def _dies(self, entry: dict[str, Any], following: dict[str, Any]) -> None:
        number = self._live.pop(entry["addr"], None)
        if number is None:
            raise EstimateError("PyTorch's history of its allocator begins in the middle of a run.")
        late = (following.get("action"), following.get("addr")) != ("free_completed", entry["addr"])
        if late:
            # Another stream uses it; which one PyTorch does not write down.
            other = 1 if self.blocks[number].stream == 0 else 0
            self._late[entry["addr"]] = self.blocks[number].size
            self._lately.add(number)
            self.blocks[number].used_by = other
            index = len(self.events)
            self.asides.append(Aside(index=index, what="used_by", storage=number, stream=other))
        self.blocks[number].dies = len(self.events)
        self.events.append(~number)

    def _refuse(self, entry: dict[str, Any]) -> None:
        """The allocator found no room."""
        refused = Refused(
            moment=len(self.events),
            bytes=entry["size"],
            free=entry["device_free"],
            line=self._line_of(entry.get("frames", ())),
        )
        self.refused.append(refused)

    def _settle_guesses(self) -> None:
        """What nobody named is what came from the host, or what it is taken for by its life."""
        moments = [moment for moment, _ in self._recorder.marks]
        for block in self.blocks:
            if block.component is None:
                came = block.arrived and not self._module_at(block.born, moments)
                block.component = Component.INPUTS if came else block.guess

    def _emptied(self) -> None:
        index = len(self.events)
        last = self.asides[-1] if self.asides else None
        if last is None or (last.index, last.what) != (index, "empty_cache"):
            self.asides.append(Aside(index=index, what="empty_cache"))

    def _tell(self, told: tuple[int, int, Any]) -> None:
        """Take in what was noted at the present moment."""
        _, _, what = told
        if isinstance(what, dict):
            for address, owner in what.items():
                number = self._live.get(address)
                if number is not None:
                    self.blocks[number].owner = owner
            return
        if isinstance(what, int):
            number = self._live.get(what)
            if number is not None:
                self.blocks[number].arrived = True
            return
        component, which = what
        if isinstance(which, int):
            for number in self._live.values():
                block = self.blocks[number]
                if block.born >= which and block.guess is None and not self._sent(block):
                    block.guess = component
            return
        for address in which:
            number = self._live.get(address)
            if number is not None and self.blocks[number].component is None:
                self.blocks[number].component = component

    def _sent(self, block: _Block) -> bool:
        """A wrapper over several GPUs uses other streams for what it sends."""
        return self._recorder.wrapped and block.stream > 0

    def _name_operators(self) -> None:
        begin, end = self._recorder.profiled
        own = [block for block in self.blocks if begin <= block.born < end]
        seen = operators.blocks(self._recorder.profiler)
        if [block.address for block in own] != [block.address for block in seen]:
            raise EstimateError("PyTorch's profiler and its allocator saw different blocks.")
        for block, shown in zip(own, seen, strict=True):
            block.op, block.dtype, block.until = shown.op, shown.dtype, shown.until
            if shown.scratch and block.component is None:
                block.component = Component.WORKSPACES

    def _check(self) -> None:
        """The history says what PyTorch's own counters say."""
        level, levels = 0, [0]
        completed = list(reversed(self._completed))
        for moment, event in enumerate(self.events):
            while completed and completed[-1][0] <= moment:
                level -= completed.pop()[1]
            if event >= 0 or ~event not in self._lately:
                level += self.blocks[event].size if event >= 0 else -self.blocks[~event].size
            levels.append(level)
        for interval in self._recorder.intervals:
            top = max(levels[interval.begin : interval.end + 1])
            if top != interval.requested:
                raise EstimateError(
                    f"PyTorch's history of {interval.phase.value} shows {top:,} bytes at its peak, "
                    f"and its counters show {interval.requested:,}."
                )

    def storages(self) -> tuple[Storage, ...]:
        """The blocks as the records of a trace have them."""
        intervals, marks = self._recorder.intervals, self._recorder.marks
        begins = [interval.begin for interval in intervals]
        moments = [moment for moment, _ in marks]
        found = []
        for block in self.blocks:
            at = bisect.bisect_right(begins, block.born) - 1
            interval = intervals[max(at, 0)]
            found.append(self._storage(block, interval, moments))
        return tuple(found)

    def _storage(self, block: _Block, interval: Interval, moments: list[int]) -> Storage:
        if block.owner is not None:
            module, name, dtype = block.owner
            op = name if block.component is Component.OPTIMIZER_STATE else block.op
        else:
            module = self._module_at(block.born, moments)
            op, dtype = block.op, block.dtype
        component = block.component
        if component is None:
            component = Component.COMMUNICATION if self._sent(block) else Component.TEMPORARIES
        return Storage(
            bytes=block.size,
            component=component,
            phase=interval.phase,
            step=interval.step,
            module=module,
            op=op,
            dtype="" if component is Component.WORKSPACES else dtype,
            stream=block.stream,
            used_by=block.used_by,
            until=block.until,
            line=block.line or interval.line,
        )

    def _module_at(self, moment: int, moments: list[int]) -> str:
        """The module that was at work; ``moments`` are those of the marks."""
        at = bisect.bisect_right(moments, moment)
        return self._recorder.marks[at - 1][1] if at else ""

    def events_of_phases(self) -> tuple[int, ...]:
        """All events up to the end of the last phase; what the program leaves is still alive."""
        return tuple(self.events[: self._recorder.intervals[-1].end])

    def phase_marks(self) -> tuple[Mark, ...]:
        """Where each phase of each step begins."""
        return tuple(
            Mark(index=one.begin, phase=one.phase, step=one.step)
            for one in self._recorder.intervals
        )

    def readings(self) -> tuple[Reading, ...]:
        """What PyTorch's counters said of each phase of each step."""
        return tuple(
            Reading(
                phase=one.phase,
                step=one.step,
                requested=one.requested,
                allocated=one.allocated,
                reserved=one.reserved,
            )
            for one in self._recorder.intervals
        )


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A request that found no room on the GPU."""

    moment: int
    bytes: int
    """That were asked for."""
    free: int
    """Of the GPU, as the driver said."""
    line: str
    """Of the user's code; empty: nobody knows."""


class _Block:
    """A block of the allocator, and what is known of it so far."""

    __slots__ = (
        "address",
        "arrived",
        "born",
        "component",
        "dies",
        "dtype",
        "guess",
        "line",
        "op",
        "owner",
        "size",
        "stream",
        "until",
        "used_by",
    )

    def __init__(self, address: int, size: int, born: int, stream: int) -> None:
        self.address, self.size, self.born, self.stream = address, size, born, stream
        self.dies = _NEVER
        self.component: Component | None = None
        self.owner: Owner | None = None
        self.used_by: int | None = None
        self.op = self.dtype = self.until = self.line = ""
        self.guess: Component | None = None
        """What it is for, as far as its life tells."""
        self.arrived = False
        """It was filled from the host."""


def _told(recorder: Notes) -> list[tuple[int, int, Any]]:
    """Everything that was noted of blocks, the last first; in one moment, names before guesses."""
    told: list[tuple[int, int, Any]] = []
    told += [(moment, 0, owners) for moment, owners in recorder.owners]
    told += [(moment, 1, (component, which)) for moment, component, which in recorder.names]
    told += [(moment, 2, (component, since)) for moment, component, since in recorder.born_since]
    told += [(moment, 3, address) for moment, address in recorder.arrived]
    return sorted(told, key=lambda one: one[:2], reverse=True)
