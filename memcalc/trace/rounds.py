"""Continues a decode whose passes come in rounds: of several kinds, again and again.

A cache that gathers tokens quantises them every so many passes; a mask or a bias is padded to a
multiple of 8. The next time round passes are the same on larger sizes. Two rounds are traced, which
say by how much; the last one is traced as well, after a prompt that is longer by the rounds that
lie between, and has to be as the two foretell.
"""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.records.decoding import Cycle, Piece, Rise
from memcalc.symbolic.records import SYMBOLIC
from memcalc.trace.decoding import AT, Decoding, Run
from memcalc.trace.passes import NotSteadyError, Pass, WrittenCalls, difference, ending, kind_of


class Rounds(Decoding):
    """Traces of such a decode."""

    def __init__(
        self, run: Run, calls: WrittenCalls, tokens: int, *, period: int, lasting: bool = False
    ) -> None:
        """Trace nothing yet.

        Args:
            run: traces the decode, later or earlier in it.
            calls: filled by the traces.
            tokens: to generate.
            period: passes in a round. A cache that gathers so many tokens quantises all of a
                prompt, which is then what generating as many leaves.
            lasting: a round frees what the one before has left; the first, which frees what the
                prompt has, is not part of the cycle then.
        """
        super().__init__(run, calls, tokens, movable=True)
        self._period = period
        self.first = AT + 1 + (period if lasting else 0)

    @property
    def said(self) -> str:
        """How passes were learnt, for an answer's assumptions."""
        return (
            f"passes of decoding come in rounds of {self._period}: two are traced at the start and "
            "continued, proven on the last"
        )

    def _until(self, shift: int) -> int:
        # The last pass of a trace ends, and is like no other.
        return self.first + 2 * self._period + 1 if not shift else self._tokens - shift

    def pieces(self) -> tuple[Piece, ...]:
        """What comes after the last whole round.

        Raises:
            NotSteadyError: rounds do not repeat.
        """
        period, first = self._period, self.first
        rounds = (self._tokens - first - period - 1) // period
        if rounds < 2:
            raise NotSteadyError("there are too few tokens for two rounds")
        passes, late = self._passes(0), self._passes(period * rounds)
        one, two = (
            self._stretches(passes, begin, begin + period - 1, 0)
            for begin in (first, first + period)
        )
        cycle = self.cycle = Cycle(
            pieces=one,
            rises=tuple(_rise(*both) for both in zip(one, two, strict=False)),
            period=period,
            times=rounds + 1,
        )
        if len(one) != len(two):
            raise NotSteadyError("rounds are of different passes")
        shift = period * rounds
        for number in range(len(one)):
            piece = cycle.piece(number, rounds)
            if not all(
                self._is_as(piece, step, late[step - shift])
                for step in range(piece.first, piece.last + 1)
            ):
                raise NotSteadyError("rounds do not grow evenly")
        last = self._tokens - 1
        late[last - shift] = ending(late[last - shift])
        return self._stretches(late, first + period, last - shift, shift)

    def _stretches(
        self, passes: dict[int, Pass], begin: int, last: int, shift: int
    ) -> tuple[Piece, ...]:
        """Passes of a trace in pieces; each is as its piece says.

        Args:
            passes: of the trace.
            begin: the first, by its number there.
            last: the last.
            shift: at which token the trace begins.
        """
        found = []
        while begin <= last:
            piece, end = self._stretch(passes, begin, last, shift)
            found.append(piece)
            begin = end + 1
        return tuple(found)

    def _stretch(
        self, passes: dict[int, Pass], begin: int, last: int, shift: int
    ) -> tuple[Piece, int]:
        one = passes[begin]
        two = passes[begin + 1] if begin < last else None
        if two is not None and _alike(one, two):
            growth = [
                late.bytes - early.bytes if late.bytes < SYMBOLIC else 0
                for early, late in zip(one.storages, two.storages, strict=True)
            ]
            try:
                piece = self._made(two, growth, shift + begin + 1, shift + begin, shift + last, one)
            except NotSteadyError:
                return self._as_traced(one, shift + begin), begin
            end = begin
            while end <= last and self._is_as(piece, shift + end, passes[end]):
                end += 1
            if end > begin + 1:
                return replace(piece, last=shift + end - 1), end - 1
        return self._as_traced(one, shift + begin), begin


def _alike(one: Pass, two: Pass) -> bool:
    """Whether passes do the same, whatever the sizes are."""
    return (one.items, one.left) == (two.items, two.left) and [
        (*kind_of(storage), storage.bytes >= SYMBOLIC) for storage in one.storages
    ] == [(*kind_of(storage), storage.bytes >= SYMBOLIC) for storage in two.storages]


def _rise(one: Piece, two: Piece) -> Rise:
    """What the second round adds to the first.

    Raises:
        NotSteadyError: they do not do the same.
    """
    same = (one.items, one.left, one.growth, one.count) == (
        *(two.items, two.left, two.growth, two.count),
    )
    if not same or list(map(kind_of, one.storages)) != list(map(kind_of, two.storages)):
        raise NotSteadyError("rounds are of different passes")
    if [(call.name, call.growth) for call in one.calls] != [
        (call.name, call.growth) for call in two.calls
    ]:
        raise NotSteadyError("kernels are called with other arguments")
    return Rise(
        bytes=tuple(
            late.bytes - early.bytes for early, late in zip(one.storages, two.storages, strict=True)
        ),
        args=tuple(
            difference(early.args, late.args)
            for early, late in zip(one.calls, two.calls, strict=True)
        ),
    )
