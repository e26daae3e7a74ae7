"""Finds the largest of ascending sizes that holds, with few exact runs.

Peak memory is the highest of moments that each grow with the size, evenly or faster. So a straight
line through two sizes that were run bounds the larger ones from below: no size beyond that bound is
asked about, but the one that confirms it. What is returned, and what does not hold above it, was
run.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

_LEAP = 8
"""Sizes grow at most by this factor while two of them need the same: they tell no bound."""
_FINE = 512
"""Positions from which only every eighth is tried, from eight times as many every 64th, and so on:
a limit is exact to 1.6 %."""


class Sample(NamedTuple):
    """The outcome of one exact run."""

    holds: bool
    spare: int | None
    """Bytes to spare; negative: bytes too many; None: unknown, because the run failed or its
    allocator was short of memory."""


class Bounds(NamedTuple):
    """The two neighboring sizes that enclose a limit."""

    best: int | None
    """The largest that holds; None: not even the first does."""
    above: int | None
    """The next one that was tried, which does not hold; None: there is none larger."""


def largest(
    ask: Callable[[int], Sample],
    sizes: Sequence[int],
    start: int,
    fall: int | None = None,
    *,
    confirm: bool = True,
) -> Bounds:
    """Find the largest size that holds; ``start`` is tried first, or the next smaller size.

    Args:
        ask: runs a size.
        sizes: those to choose from, ascending.
        start: the first to try.
        fall: bytes that a size of one more leaves less to spare, where that is known beforehand.
        confirm: run the next larger size too, where a line through two smaller ones excludes it.
    """
    search = _Search(sizes, fall, confirm=confirm)
    at: int | None = max(bisect_right(sizes, start) - 1, 0)
    while at is not None:
        search.add(at, ask(sizes[at]))
        at = search.choose()
    low, high = search.low, search.high
    return Bounds(sizes[low] if low >= 0 else None, sizes[high] if high < len(sizes) else None)


class _Search:
    """Samples of one search, by their positions among the sizes."""

    def __init__(self, sizes: Sequence[int], fall: int | None, *, confirm: bool) -> None:
        self._sizes, self._fall, self._confirm = sizes, fall, confirm
        self.low, self.high = -1, len(sizes)
        """The largest position that holds, and the smallest that does not."""
        self._spare: dict[int, int] = {}
        self._gap = 1

    def add(self, at: int, sample: Sample) -> None:
        """Record whether the size at a position holds, and its bytes to spare."""
        if sample.spare is not None:
            self._spare[at] = sample.spare
        if sample.holds:
            self.low = at
        else:
            self.high = at

    def choose(self) -> int | None:
        """Return the position of the next size to try, or None if the limit is enclosed."""
        beyond = self.high == len(self._sizes)
        stride = _find_stride(self.low)
        first = (self.low + 1) // stride * stride + stride - 1
        if first >= self.high:
            return self.high - 1 if beyond and self.low < self.high - 1 else None
        guess = self._predict_limit()
        if not self._confirm and self._rules_out(first):
            return None
        if guess is None:
            middle = (self.low + self.high) // 2 if self.low >= 0 else self.high // _LEAP
            guess = _LEAP * (self.low + 1) - 1 if beyond else middle
        if beyond:
            guess = min(guess, 2 * _LEAP * (self.low + 1), self.high - 1)
        near = min(self._gap * stride, (self.high - self.low) // 2)
        # Beside a size that was run lies the confirmation; where that fails, memory is uneven here,
        # and the distance doubles.
        close = guess < self.low + near or (not beyond and guess > self.high - near)
        self._gap = 2 * self._gap if close else 1
        guess = max(guess if beyond else min(guess, self.high - near), self.low + near)
        return max(_align_down(guess), first)

    def _predict_limit(self) -> int | None:
        """Predict, from bytes to spare of tried sizes, the last position that holds, or None."""
        known = sorted(self._spare)
        if self._fall is not None and len(known) == 1:
            size = self._sizes[known[0]] + self._spare[known[0]] / self._fall
            return bisect_right(self._sizes, size) - 1
        below = [at for at in known if at <= self.low][-2:]
        above = [at for at in known if at >= self.high][:2]
        bounds = [self._extrapolate(*pair) for pair in (below, above) if len(pair) == 2]
        inside = [at for at in bounds if at is not None and self.low < at + 1 <= self.high]
        if inside:
            return min(inside)
        return self._extrapolate(below[-1], above[0]) if below and above else None

    def _rules_out(self, at: int) -> bool:
        """Return True if a line through the two largest sizes that hold ends below a position."""
        below = [one for one in sorted(self._spare) if one <= self.low][-2:]
        bound = self._extrapolate(*below) if len(below) == 2 else None
        return bound is not None and bound < at

    def _extrapolate(self, one: int, other: int) -> int | None:
        """Return the last position with spare memory on the line through two tried positions."""
        fall = self._spare[one] - self._spare[other]
        if fall <= 0:
            return None
        start, end = self._sizes[one], self._sizes[other]
        size = start + self._spare[one] * (end - start) / fall
        return bisect_right(self._sizes, size) - 1


def _find_stride(at: int) -> int:
    """Return the distance between sizes to try near a position: 1, 8, 64..."""
    stride = 1
    while at >= _FINE * stride:
        stride *= 8
    return stride


def _align_down(at: int) -> int:
    """Round a position down to one that may be tried, a multiple of the stride there."""
    stride = _find_stride(at)
    return max((at + 1) // stride * stride - 1, 0)
