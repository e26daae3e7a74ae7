"""Writes the passes of a decode down behind those that were traced."""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.kernels.formulas import KernelCall, scratch
from memcalc.kernels.target import Target
from memcalc.records.decoding import BORN, DIES, EMPTIES, Piece, Role, aged
from memcalc.records.trace import Aside, Mark, Phase, Storage
from memcalc.symbolic.evaluate import expand
from memcalc.symbolic.records import SYMBOLIC, code, entry
from memcalc.trace.folding.tagged import TaggedTrace
from memcalc.trace.passes import WrittenCalls, passes_of

Before = tuple[tuple[Role, int], ...]
"""What passes have left: names, and numbers among the storages of a trace."""


class Writer:
    """Writes passes behind those that were traced."""

    def __init__(self, base: TaggedTrace, calls: WrittenCalls, first: int) -> None:
        """Keep what comes before the passes.

        Args:
            base: the trace from the start.
            calls: of its kernels.
            first: number of the first pass that is written.
        """
        steps = [(mark.index, mark.step) for mark in base.marks if mark.phase is Phase.DECODE]
        self._end = next(index for index, step in steps if step == first)
        self._marks = [
            mark for mark in base.marks if mark.phase is not Phase.DECODE or mark.step < first
        ]
        self._marks = [mark for mark in self._marks if mark.index < self._end]
        self._asides = [aside for aside in base.asides if aside.index < self._end]
        self._events = list(base.events[: self._end])
        self._storages = list(base.storages)
        self._calls = dict(calls.calls)
        self._inventory = base.inventory
        held = set(self._events) - {~event for event in self._events if event < 0}
        names = passes_of(base)[first - 1].names
        self._left = {role: number for number, role in names.items() if number in held}
        self._before = dict(self._left)

    def append(self, piece: Piece, step: int) -> None:
        """Write one pass down."""
        self._mark(step)
        left, made = self._left, dict[int, int]()
        for item in piece.items:
            number, what = divmod(item, 3)
            if item == EMPTIES:
                self._mark(step)
                self._asides.append(Aside(index=len(self._events), what="empty_cache"))
            elif what == BORN:
                made[number] = len(self._storages)
                self._events.append(len(self._storages))
                self._storages.append(self._storage(piece, number, step))
            elif what == DIES:
                self._events.append(~made.pop(number))
            elif piece.left[number] in left:
                self._events.append(~left.pop(piece.left[number]))
        named = piece.roles
        self._left = {aged(role): storage for role, storage in left.items()}
        self._left.update((named[number], storage) for number, storage in made.items())

    def _mark(self, step: int) -> None:
        self._marks.append(Mark(index=len(self._events), phase=Phase.DECODE, step=step))

    def _storage(self, piece: Piece, number: int, step: int) -> Storage:
        storage = piece.storages[number]
        if storage.bytes < SYMBOLIC:
            return replace(storage, bytes=piece.size(number, step), step=step)
        kind, call = entry(storage.bytes)
        known = KernelCall(*piece.call(call, step))
        return replace(
            storage,
            bytes=code(kind, self._calls.setdefault(known, len(self._calls))),
            step=step,
        )

    def expanded(self, target: Target, shown_from: int) -> tuple[TaggedTrace, int, Before]:
        """The trace with what kernels take in place of their calls.

        Returns:
            The trace; how many events show passes from ``shown_from`` on; and what those before
            the first that was written have left.
        """
        taken = [scratch(call, target) for call in self._calls]
        plain = [0 if s.bytes >= SYMBOLIC else s.bytes for s in self._storages]
        stream = expand(self._marks, self._events, self._storages, plain, taken)
        storages = [
            replace(self._storages[origin], bytes=size)
            for origin, size in zip(stream.origins, stream.sizes, strict=True)
        ]
        first = next(m.index for m in stream.marks if m.step == shown_from)
        now = {
            before.index: after.index
            for before, after in zip(self._marks, stream.marks, strict=True)
        }
        traced = TaggedTrace(
            storages=storages,
            storage_tags=[],
            events=stream.events,
            event_tags=[],
            marks=stream.marks,
            asides=[replace(aside, index=now[aside.index]) for aside in self._asides],
            inventory=self._inventory,
            flops=None,
        )
        numbers = {origin: n for n, origin in enumerate(stream.origins)}
        before = [(role, numbers.get(number)) for role, number in self._before.items()]
        kept = tuple((role, number) for role, number in before if number is not None)
        return traced, len(stream.events) - first, kept
