"""The language in which kernels say what they take beside their outputs.

``Allocations`` are whole numbers: ``n > 0`` allocates ``n`` bytes, ``~i`` frees the ``i``-th
allocation among them. What is not freed explicitly dies at the end of the operator.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Allocations = tuple[int, ...]


class Scratch(msgspec.Struct, frozen=True):
    """Made before and after the outputs are allocated; indices count through both."""

    before: Allocations = ()
    after: Allocations = ()


Formula = Callable[..., Scratch]
"""Takes the target, and what was read from the arguments of a call."""


def nested(*sizes: int) -> Allocations:
    """Allocate in this order, free in the opposite one, as C++ destructors do."""
    wanted = [size for size in sizes if size > 0]
    return (*wanted, *(~index for index in reversed(range(len(wanted)))))


def later(allocations: Allocations, first: int) -> Allocations:
    """The same where so many others came before."""
    return tuple(word if word > 0 else word - first for word in allocations)


def behind(copies: Allocations, after: Allocations, before: Allocations = ()) -> Scratch:
    """``copies``: bytes of what is copied first and held to the end."""
    first = len(copies)
    freed = tuple(~number for number in reversed(range(first)))
    return Scratch((*copies, *later(before, first)), (*later(after, first), *freed))


def ceil_div(value: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is at least ``value``."""
    return ceil_div(value, multiple) * multiple
