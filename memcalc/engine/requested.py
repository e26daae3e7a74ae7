"""Requested bytes of a run after each birth and death, as PyTorch counts them."""

from __future__ import annotations


class Requested:
    """Requested bytes after each event, as PyTorch counts them.

    A block that another stream still uses when it is freed counts until that stream is done, which
    is before a later birth.
    """

    def __init__(self) -> None:
        self._level = 0
        self._late: dict[int, int] = {}
        self._after, self._before_next = [0], [0]

    def born(self, size: int) -> None:
        """A block of this size."""
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
