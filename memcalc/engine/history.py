"""The caching allocator's history as a timeline of named blocks."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from memcalc.engine import nccl_traffic, torch_internals
from memcalc.engine.notes import Interval, Notes, Owner
from memcalc.errors import EstimateError
from memcalc.records.trace import (
    ONCE,
    Aside,
    Component,
    Mark,
    Phase,
    Reading,
    Sent,
    Storage,
    Trace,
)
from memcalc.units import format_bytes

_NEVER = 1 << 62
_PRIVATE = (
    "CUDA graphs and memory pools of their own hold {} of what is reserved; what is free of it "
    "shows as cached, and nothing else can use it"
)


class Timeline:
    """Blocks in order of allocation, and all events in order.

    ``entries``: the allocator's history of one GPU, as ``torch.cuda.memory._snapshot`` has it;
    ``line_of`` finds the user's line that requested a block, from the frames of its entry.
    """

    def __init__(
        self,
        recorder: Notes,
        entries: Sequence[dict[str, Any]],
        line_of: Callable[[Sequence[dict[str, Any]]], str] = lambda frames: "",
    ) -> None:
        self._line_of = line_of
        self.refused: list[Refused] = []
        """Requests that failed for lack of memory, in order."""
        self.events: list[int] = []
        self.asides: list[Aside] = []
        self.blocks: list[_Block] = []
        self._recorder = recorder
        self._live: dict[int, int] = {}
        self._streams: dict[int, int] = {0: 0}
        self._private: set[int] = set()
        self._requested = _Requested()
        told = _told(recorder)
        if recorder.gap is not None:
            entries = recorder.gap.bridged(entries)
        for at, entry in enumerate(entries):
            action = entry["action"]
            if action == "gap":
                self._skip(recorder, told)
            if action in ("segment_free", "segment_unmap"):
                self._emptied()
            if action == "oom":
                self._refuse(entry)
            if action == "free_completed":
                self._requested.completed(entry["addr"])
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
        for begin, end in recorder.cublas:
            for event in self.events[begin:end]:
                if event < 0:
                    self.blocks[~event].component = Component.WORKSPACES
        if recorder.profiler is not None:
            self._name_operators()
        self._settle_guesses()
        self._check()

    def _born(self, entry: dict[str, Any]) -> None:
        self._live[entry["addr"]] = len(self.blocks)
        stream = self._stream(entry["stream"])
        block = _Block(entry["addr"], entry["size"], len(self.events), stream)
        block.line = self._line_of(entry.get("frames", ()))
        self.blocks.append(block)
        self.events.append(len(self.blocks) - 1)
        self._requested.born(entry["size"])

    def _stream(self, known: int) -> int:
        """The number of a stream in a trace; what a private pool holds nobody else can use."""
        stream = self._streams.setdefault(known, len(self._streams))
        if known in self._recorder.private and stream not in self._private:
            self._private.add(stream)
            self.asides.append(Aside(index=len(self.events), what="keep_pool", stream=stream))
        return stream

    def _dies(self, entry: dict[str, Any], following: dict[str, Any]) -> None:
        number = self._live.pop(entry["addr"], None)
        if number is None:
            raise EstimateError("PyTorch's history of its allocator begins in the middle of a run.")
        block = self.blocks[number]
        late = (following.get("action"), following.get("addr")) != ("free_completed", entry["addr"])
        if late:
            # Another stream uses it; PyTorch's history does not record which one.
            other = 1 if block.stream == 0 else 0
            block.used_by = other
            index = len(self.events)
            self.asides.append(Aside(index=index, what="used_by", storage=number, stream=other))
        self._requested.dies(block.address, block.size, late=late)
        block.dies = len(self.events)
        self.events.append(~number)

    def _refuse(self, entry: dict[str, Any]) -> None:
        line = self._line_of(entry.get("frames", ()))
        self.refused.append(Refused(len(self.events), entry["size"], entry["device_free"], line))

    def _settle_guesses(self) -> None:
        """Name the remaining blocks by their origin (copied from the host) or lifetime."""
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
                if (block := self._living(address)) is not None:
                    setattr(block, "op" if isinstance(owner, str) else "owner", owner)
            return
        if isinstance(what, int):
            if (block := self._living(what)) is not None:
                block.arrived = True
            return
        component, which = what
        if isinstance(which, int):
            for number in reversed(self._live.values()):
                block = self.blocks[number]
                if block.born < which:
                    break
                if block.guess is None and not self._sent(block):
                    block.guess = component
            return
        for block in filter(None, map(self._living, which)):
            if component is None:
                block.arrived = block.given = True
            else:
                block.component = block.component or component

    def _living(self, address: int) -> _Block | None:
        number = self._live.get(address)
        return None if number is None else self.blocks[number]

    def _skip(self, recorder: Notes, told: list[tuple[int, int, Any]]) -> None:
        """Let moments after a gap be those of the events that stand for it."""
        assert recorder.gap is not None
        begin, end, here = recorder.gap.begin, recorder.gap.end, len(self.events)

        def moved(moment: int) -> int:
            return moment if moment <= begin else here + max(moment - end, 0)

        for interval in recorder.intervals:
            interval.kept = not begin < interval.end <= end
            interval.begin, interval.end = moved(interval.begin), moved(interval.end)
        recorder.marks = [(moved(moment), path) for moment, path in recorder.marks]
        recorder.profiled = moved(recorder.profiled[0]), moved(recorder.profiled[1])
        recorder.cublas = [(moved(begin), moved(end)) for begin, end in recorder.cublas]
        told[:] = [(moved(moment), order, what) for moment, order, what in told]

    def _sent(self, block: _Block) -> bool:
        """A wrapper over several GPUs uses other streams for what it sends."""
        return self._recorder.wrapped and block.stream > 0

    def _name_operators(self) -> None:
        begin, end = self._recorder.profiled
        own = [block for block in self.blocks if begin <= block.born < end]
        seen = torch_internals.blocks_by_operator(self._recorder.profiler, self._recorder.KIND)
        if [block.address for block in own] != [block.address for block in seen]:
            raise EstimateError("PyTorch's profiler and its allocator saw different blocks.")
        for block, shown in zip(own, seen, strict=True):
            block.op, block.dtype, block.until = shown.op, shown.dtype, shown.until
            if shown.scratch and block.component is None:
                block.component = Component.WORKSPACES

    def _check(self) -> None:
        """The history says what PyTorch's own counters say."""
        for interval in self._recorder.intervals:
            if not interval.kept:
                continue
            least, most = self._requested.peak(max(interval.begin, interval.counted), interval.end)
            if not least <= interval.requested <= most:
                raise EstimateError(
                    f"PyTorch's history of {interval.phase.value} shows a peak of {most:,} bytes, "
                    f"and its counters show {interval.requested:,}."
                )

    def trace(self, *, assumptions: Sequence[str] = (), **more: Any) -> Trace:
        """The records of a trace; ``more``: its fields that are not of the allocator."""
        intervals = self._recorder.intervals
        private = sum(self._recorder.private.values())
        pools = (_PRIVATE.format(format_bytes(private)),) if private else ()
        return Trace(
            assumptions=(*assumptions, *pools),
            storages=self._storages(),
            # What the program leaves behind is still alive at the end of the last phase.
            events=tuple(self.events[: intervals[-1].end]),
            marks=tuple(Mark(index=i.begin, phase=i.phase, step=i.step) for i in intervals),
            asides=tuple(self.asides),
            readings=self._readings(),
            versions={"torch": str(torch.__version__)},
            **more,
        )

    def _storages(self) -> tuple[Storage, ...]:
        """The blocks as the records of a trace have them."""
        intervals, marks = self._recorder.intervals, self._recorder.marks
        begins = [interval.begin for interval in intervals]
        moments = [moment for moment, _ in marks]
        return tuple(
            self._storage(
                block, intervals[max(bisect.bisect_right(begins, block.born) - 1, 0)], moments
            )
            for block in self.blocks
        )

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

    def sent(self, step: int) -> tuple[Sent, ...]:
        """What was sent in a step, without what loading and resuming sent."""
        intervals = self._recorder.intervals
        inside = [
            at
            for at, one in enumerate(intervals)
            if one.step == step and one.phase not in (*ONCE, Phase.EVAL)
        ]
        if not inside or not self._recorder.wrapped:
            return ()
        before = intervals[inside[0] - 1].given if inside[0] else {}
        return nccl_traffic.between(before, intervals[inside[-1]].given)

    def _readings(self) -> tuple[Reading, ...]:
        return tuple(
            Reading(**{name: getattr(one, name) for name in Reading.__struct_fields__})
            for one in self._recorder.intervals
        )


class Refused(msgspec.Struct, frozen=True):
    """A request that found no room on the GPU."""

    moment: int
    bytes: int
    """That were asked for."""
    free: int
    """Of the GPU, as the driver said."""
    line: str
    """Of the user's code; empty: unknown."""


class _Requested:
    """Requested bytes after each event, as PyTorch counts them.

    A block that another stream still uses when it is freed counts until that stream is done, which
    is before a later birth.
    """

    def __init__(self) -> None:
        self._level = 0
        self._late: dict[int, int] = {}
        self._after, self._before_next = [0], [0]

    def born(self, size: int) -> None:
        self._level += size
        self._append()

    def dies(self, address: int, size: int, *, late: bool) -> None:
        """The block at an address; later than now, as far as it counts."""
        if late:
            self._late[address] = size
        else:
            self._level -= size
        self._append()

    def completed(self, address: int) -> None:
        """No stream uses what was at this address any more."""
        self._level -= self._late.pop(address, 0)
        self._before_next[-1] = self._level

    def _append(self) -> None:
        self._after.append(self._level)
        self._before_next.append(self._level)

    def peak(self, begin: int, end: int) -> tuple[int, int]:
        """The highest level between two moments, at least and at most.

        Whether late deaths were before the first moment or after it nobody wrote down.
        """
        inside = max(self._after[begin + 1 : end + 1], default=0)
        return max(inside, self._before_next[begin]), max(inside, self._after[begin])


class _Block(msgspec.Struct):
    """A block of the allocator, and what is known of it so far."""

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
    """What it is for, as far as its life tells."""
    arrived: bool = False
    """It was filled from the host."""
    given: bool = False
    """It was handed to a model from outside."""


def _told(recorder: Notes) -> list[tuple[int, int, Any]]:
    """Everything that was noted of blocks, the last first; in one moment, names before guesses."""
    told: list[tuple[int, int, Any]] = []
    told += [(moment, 0, owners) for moment, owners in recorder.owners]
    told += [(moment, 1, (component, which)) for moment, component, which in recorder.names]
    told += [(moment, 2, (component, since)) for moment, component, since in recorder.born_since]
    told += [(moment, 3, address) for moment, address in recorder.arrived]
    return sorted(told, key=lambda one: one[:2])[::-1]
