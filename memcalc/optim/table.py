"""A launch's table: which tensors share a launch, and where each one's programs and parts are.

Holds no Triton, so that a launch can be planned, counted and tested where there is none.
"""

from collections.abc import Iterable, Iterator, Sequence

SPAN = 2048  # elements per program
WORD = 8  # bytes of an entry
ALIGNED = 16  # the elements and bytes whose multiples allow wide loads


def split(evens: Iterable[bool]) -> Iterator[tuple[list[int], bool]]:
    """Yield the tensors that allow wide loads in all their parts, then the others.

    Args:
        evens: by tensor, whether it does; see ``is_even``.
    """
    known = list(evens)
    for kind in (True, False):
        chosen = [i for i, even in enumerate(known) if even is kind]
        if chosen:
            yield chosen, kind


def is_even(elements: int, addresses: Iterable[int]) -> bool:
    """Say whether a tensor's count and the addresses of its parts allow wide loads."""
    return elements % ALIGNED == 0 and all(address % ALIGNED == 0 for address in addresses)


def fill(rows: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """Lay out the table of a launch.

    Args:
        rows: for each tensor its element count, then whatever the kernel wants of it.

    Returns:
        The words, first each tensor's first program and then the rows, and the count of programs.
    """
    starts, programs = [], 0
    for row in rows:
        starts.append(programs)
        programs += -(-row[0] // SPAN)
    return [*starts, *(word for row in rows for word in row)], programs


def table_bytes(tensors: int, columns: int) -> int:
    """Count the bytes of the table of a launch over so many tensors with rows of so many words."""
    return WORD * tensors * (1 + columns)


def depth(tensors: int) -> int:
    """Count the halvings that find one of so many tensors."""
    return max(tensors - 1, 0).bit_length()
