"""A launch's table: which tensors share a launch, and where each one's programs and parts are.

Holds no Triton, so that a launch can be planned, counted and tested without it.
"""

from collections.abc import Iterable, Iterator, Sequence

# Elements per program, by whether loads are wide: a thread without them keeps an address for each
# element, and at 2048 the 8-bit kernel would spill registers on some GPUs.
SPANS = {True: 2048, False: 1024}
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


def fill(rows: Sequence[Sequence[int]], span: int) -> tuple[list[int], int]:
    """Lay out the table of a launch.

    Args:
        rows: for each tensor its element count, then the other words of its row.
        span: elements per program.

    Returns:
        The words, first each tensor's first program and then the rows, and the count of programs.
    """
    starts, programs = [], 0
    for row in rows:
        starts.append(programs)
        programs += -(-row[0] // span)
    return [*starts, *(word for row in rows for word in row)], programs


def depth(tensors: int) -> int:
    """Count the halvings that find one of this many tensors."""
    return max(tensors - 1, 0).bit_length()
