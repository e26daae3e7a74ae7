"""Turns the caching allocator's history into a timeline of labelled blocks."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from memcalc.engine import nccl_traffic, source_lines, torch_internals
from memcalc.engine.absences import Absence, take_away
from memcalc.engine.notes import Gap, Interval, Label, Notes, Owner
from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError
from memcalc.records.prediction import Refusal
from memcalc.records.trace import (
    ONCE,
    AllocatorCall,
    Component,
    Mark,
    Phase,
    Sent,
    Storage,
    Trace,
)
from memcalc.units import format_bytes

_NEVER = 1 << 62
_ONE_NUMBER = 8
"""Bytes of the largest single number. A loss or a count that lives as long as gradients or buckets
do is none of them."""
_BEHIND = (
    "up to {} of what shows as cached waits for another stream: the GPU is taken to be behind the "
    "host, and a block that a second stream used is free once the host waits for later work, or "
    "has queued 1,000 kernels"
)
_PRIVATE = (
    "CUDA graphs and memory pools of their own hold {} of what is reserved; what is free of it "
    "shows as cached, and nothing else can use it"
)


class Timeline:
    """The blocks of one GPU in order of allocation, and all events in order."""

    def __init__(
        self, notes: Notes, entries: Sequence[dict[str, Any]], *, wrapped: bool = False
    ) -> None:
        """Read a history and label its blocks.

        Args:
            notes: labels of blocks, and phases.
            entries: the allocator's history of one GPU, from ``torch.cuda.memory._snapshot``.
            wrapped: the model is inside a wrapper over several GPUs.
        """
        self._wrapped = wrapped
        self._lines: dict[int, str] = {}
        """Lines of the user's code by the ID of the entry's frames, which entries share."""
        self._refused: tuple[int, dict[str, Any]] | None = None
        """The last request that ran out of memory: its moment and its entry."""
        self.events: list[int] = []
        self.asides: list[AllocatorCall] = []
        self.blocks: list[_Block] = []
        self._notes = notes
        self._live: dict[int, int] = {}
        self._streams: dict[object, int] = {0: 0}
        self._private: set[int] = set()
        self._level = 0
        self._levels = [0]
        """Requested bytes after each event, by PyTorch's count."""
        self._late: dict[int, int] = {}
        """Freed blocks that another stream still uses, by address; PyTorch still counts them."""
        self._late_bytes = self._most_late = 0
        self._of_tensors = [0]
        """Requested bytes after each event, without late blocks."""
        self._lower: dict[int, int] = {}
        """Requested bytes after late blocks were freed, by the event that comes next."""
        # In one moment, names come before guesses.
        notes.labels.sort(key=lambda label: label[:2])
        self._waiting = deque(notes.labels)
        self._read_entries(entries if notes.gap is None else notes.gap.bridge(entries))
        self._apply_notes(_NEVER)
        for address in [*self._late]:
            self._complete(address)
        for component, begin, end in notes.released:
            for event in self.events[begin:end]:
                if event < 0:
                    self.blocks[~event].component = component
        if notes.profiler is not None:
            self._name_operators()
        self._settle_guesses()
        self._check()

    def _read_entries(self, entries: Sequence[dict[str, Any]]) -> None:
        """Read the allocator's entries in order, and apply the notes of the same moments."""
        for at, entry in enumerate(entries):
            action = entry["action"]
            if action == "gap" and self._notes.gap is not None:
                self._skip_gap(self._notes.gap)
            if action in ("segment_free", "segment_unmap"):
                self._note_empty_cache()
            if action == "oom":
                self._refused = len(self.events), entry
            if action == "free_completed" and entry["addr"] in self._late:
                self._complete(entry["addr"])
            if action not in ("alloc", "free_requested"):
                continue
            if self._waiting and self._waiting[0][0] <= len(self.events):
                self._apply_notes(len(self.events))
            if action == "alloc":
                self._add_block(entry)
            else:
                following = entries[at + 1] if at + 1 < len(entries) else {}
                self._free_block(entry, following)
            self._levels.append(self._level)
            self._of_tensors.append(self._level - self._late_bytes)

    def _add_block(self, entry: dict[str, Any]) -> None:
        """Add the block of an allocation, and its event."""
        self._live[entry["addr"]] = len(self.blocks)
        stream = self._number_stream(entry["stream"])
        block = _Block(entry["addr"], entry["size"], len(self.events), stream)
        block.line = self._user_line(entry)
        self.blocks.append(block)
        self.events.append(len(self.blocks) - 1)
        self._level += block.size
        self._most_late = max(self._most_late, self._late_bytes)

    def _user_line(self, entry: dict[str, Any]) -> str:
        """Return the user's line that requested a block, or an empty string."""
        frames = entry.get("frames")
        if not frames:
            return ""
        if id(frames) not in self._lines:
            self._lines[id(frames)] = source_lines.find_in_frames(frames)
        return self._lines[id(frames)]

    def _number_stream(self, known: object) -> int:
        """Return a stream's number in the trace; record a private pool at its first use."""
        stream = self._streams.setdefault(known, len(self._streams))
        if known in self._notes.private and stream not in self._private:
            self._private.add(stream)
            self._add_call("keep_pool", -1, stream)
        return stream

    def _free_block(self, entry: dict[str, Any], following: dict[str, Any]) -> None:
        """Add the free of a block; ``following``: the next entry, which shows if it is late."""
        number = self._live.pop(entry["addr"], None)
        if number is None:
            raise EstimateError("PyTorch's history of its allocator begins in the middle of a run.")
        block = self.blocks[number]
        late = (following.get("action"), following.get("addr")) != ("free_completed", entry["addr"])
        if late:
            # PyTorch's history does not record which stream: a replay gives each block its own.
            block.used_by = self._number_stream(object())
            self._add_call("used_by", number, block.used_by)
            self._late[block.address] = number
            self._late_bytes += block.size
        else:
            self._level -= block.size
        block.dies = len(self.events)
        self.events.append(~number)

    def _complete(self, address: int) -> None:
        """Complete the free of a late block: no other stream uses it now."""
        number = self._late.pop(address)
        self._level -= self.blocks[number].size
        self._late_bytes -= self.blocks[number].size
        self._lower[len(self.events)] = self._level
        self._add_call("passed", number, 0)

    def _add_call(self, what: str, number: int, stream: int) -> None:
        """Record a call of the allocator beside allocations and frees."""
        index = len(self.events)
        self.asides.append(AllocatorCall(index=index, what=what, storage=number, stream=stream))

    def _settle_guesses(self) -> None:
        """Label the remaining blocks by their origin (copied from the host) or lifetime."""
        moments = [moment for moment, _ in self._notes.marks]
        for block in self.blocks:
            if block.component is None:
                came = block.arrived and not self._module_at(block.born, moments)
                batch = came and (block.given or block.guess is not Component.HELD)
                block.component = Component.INPUTS if batch else block.guess

    def _note_empty_cache(self) -> None:
        call = AllocatorCall(index=len(self.events), what="empty_cache")
        if self.asides[-1:] != [call]:
            self.asides.append(call)

    def _apply_notes(self, until: int) -> None:
        """Apply the notes up to a moment to living blocks."""
        while self._waiting and self._waiting[0][0] <= until:
            _, kind, what = self._waiting.popleft()
            if kind is Label.OWNERS:
                for address, owner in what.items():
                    if (block := self._find_living(address)) is not None:
                        setattr(block, "op" if isinstance(owner, str) else "owner", owner)
            elif kind is Label.NAMES:
                component, addresses = what
                for block in filter(None, map(self._find_living, addresses)):
                    if component is None:
                        block.arrived = block.given = True
                    else:
                        block.component = block.component or component
            elif kind is Label.BORN_SINCE:
                self._guess_component(*what)
            elif (block := self._find_living(what)) is not None:
                block.arrived = True

    def _guess_component(self, component: Component, since: int) -> None:
        """Set the guessed component of living blocks born since a moment."""
        for number in reversed(self._live.values()):
            block = self.blocks[number]
            if block.born < since:
                break
            is_one = block.size <= _ONE_NUMBER and component is not Component.ACTIVATIONS
            if block.guess is None and not is_one and not self._is_sent(block):
                block.guess = component

    def _find_living(self, address: int) -> _Block | None:
        number = self._live.get(address)
        return None if number is None else self.blocks[number]

    def _skip_gap(self, gap: Gap) -> None:
        """Move moments after a gap behind the events that replace it; skip the gap's intervals."""
        here = len(self.events)
        for interval in self._notes.intervals:
            interval.kept = not gap.begin < interval.end <= gap.end
        self._notes.move(lambda m: m if m <= gap.begin else here + max(m - gap.end, 0))
        labels = self._notes.labels
        self._waiting = deque(labels[len(labels) - len(self._waiting) :])

    def _is_sent(self, block: _Block) -> bool:
        """Return True if a wrapper over several GPUs sends a block: it uses streams of its own."""
        if not self._wrapped or block.stream == 0:
            return False
        # A whole step may run on another stream than the default one, to be captured as a graph.
        return self._streams.get(self._find_interval(block).stream) != block.stream

    def _find_interval(self, block: _Block) -> Interval:
        """Return the interval in which a block was allocated."""
        at = bisect.bisect_right(self._notes.intervals, block.born, key=lambda one: one.begin)
        return self._notes.intervals[max(at - 1, 0)]

    def _name_operators(self) -> None:
        """Label blocks with the operators and dtypes that the profiler recorded."""
        begin, end = self._notes.profiled
        own = [block for block in self.blocks if begin <= block.born < end]
        seen = torch_internals.blocks_by_operator(self._notes.profiler, self._notes.KIND)
        if [block.address for block in own] != [block.address for block in seen]:
            raise EstimateError("PyTorch's profiler and its allocator saw different blocks.")
        for block, shown in zip(own, seen, strict=True):
            block.op, block.dtype, block.until = shown.op, shown.dtype, shown.until
            if shown.scratch and block.component is None:
                block.component = Component.WORKSPACES

    def _check(self) -> None:
        """Check the history's peaks against PyTorch's counters; then leave out late blocks.

        PyTorch counts late blocks as requested, but not as allocated.

        Raises:
            EstimateError: they differ.
        """
        for interval in (one for one in self._notes.intervals if one.kept):
            begin, end, levels = interval.begin, interval.end + 1, self._levels
            inside, counted = max(levels[begin + 1 : end], default=0), interval.peaks.requested
            # It is unknown whether late blocks were freed before the phase began or after.
            least = max(inside, self._lower.get(begin, levels[begin]))
            most = max(inside, levels[begin])
            if not least <= counted <= most:
                raise EstimateError(
                    f"PyTorch's history of {interval.phase.value} shows a peak of {most:,} bytes, "
                    f"and its counters show {counted:,}."
                )
            interval.peaks = replace(interval.peaks, requested=max(self._of_tensors[begin:end]))

    def trace(self, *, assumptions: Sequence[str] = (), **more: Any) -> Trace:
        """Return the trace of the blocks; ``more``: the trace's other fields."""
        intervals = self._notes.intervals
        private = sum(self._notes.private.values())
        pools = (_PRIVATE.format(format_bytes(private)),) if private else ()
        most = self._most_late
        behind = (_BEHIND.format(format_bytes(most)),) if most and stub.is_open() else ()
        trace = Trace(
            assumptions=(*behind, *assumptions, *pools),
            storages=self._make_storages(),
            # Blocks that the program does not free are alive at the end of the last phase.
            events=tuple(self.events[: intervals[-1].end]),
            marks=tuple(Mark(index=i.begin, phase=i.phase, step=i.step) for i in intervals),
            asides=tuple(self.asides),
            readings=self._notes.readings(),
            versions={"torch": str(torch.__version__)},
            **more,
        )
        return take_away(trace, list(self._list_absences(len(trace.events))))

    def _list_absences(self, end: int) -> Iterator[Absence]:
        """Yield the ranges taken off the GPU before an event, with their storages."""
        for one in self._notes.absences:
            if one.begin < end:
                inside = range(one.at, one.at + one.bytes)
                one.storages = tuple(
                    number
                    for number, block in enumerate(self.blocks)
                    if block.address in inside and block.born < one.begin <= block.dies
                )
                yield one

    def refusal(self) -> Refusal | None:
        """Return the last request that ran out of memory, or None."""
        if self._refused is None:
            return None
        moment, entry = self._refused
        interval = next(one for one in reversed(self._notes.intervals) if one.begin <= moment)
        return Refusal(
            device=self._notes.device,
            phase=interval.phase,
            step=interval.step,
            line=self._user_line(entry) or interval.line,
            asked=entry["size"],
            free=entry["device_free"],
        )

    def _make_storages(self) -> tuple[Storage, ...]:
        """Return the blocks as records of a trace."""
        moments = [moment for moment, _ in self._notes.marks]
        return tuple(self._make_storage(block, moments) for block in self.blocks)

    def _make_storage(self, block: _Block, moments: list[int]) -> Storage:
        interval = self._find_interval(block)
        if block.owner is not None:
            module, name, dtype = block.owner
            op = name if block.component is Component.OPTIMIZER_STATE else block.op
        else:
            module = self._module_at(block.born, moments)
            op, dtype = block.op, block.dtype
        component = block.component
        if component is None:
            component = Component.COMMUNICATION if self._is_sent(block) else Component.TEMPORARIES
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
        """Return the path of the module that ran at a moment; ``moments``: of each mark."""
        at = bisect.bisect_right(moments, moment)
        return self._notes.marks[at - 1][1] if at else ""

    def sent(self, step: int) -> tuple[Sent, ...]:
        """Return the collectives and bytes sent in a step, without loading and resuming."""
        intervals = self._notes.intervals
        inside = [
            at
            for at, one in enumerate(intervals)
            if one.step == step and one.phase not in (*ONCE, Phase.EVAL)
        ]
        if not inside or not self._wrapped:
            return ()
        before = intervals[inside[0] - 1].given if inside[0] else {}
        return nccl_traffic.count_sent(before, intervals[inside[-1]].given)


class _Block(Struct):
    """A block of the allocator, with the labels known so far."""

    address: int
    size: int
    born: int
    stream: int
    dies: int = _NEVER
    component: Component | None = None
    owner: Owner | None = None
    used_by: int | None = None
    op: str = ""
    dtype: str = ""
    until: str = ""
    line: str = ""
    guess: Component | None = None
    """Its purpose, guessed from its lifetime."""
    arrived: bool = False
    """True if it was copied from the host."""
    given: bool = False
    """True if it was an argument of a model's call."""
