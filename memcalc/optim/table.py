"""Plans the table of a launch: which tensors share it, and where their programs and parts are.

It does not import Triton, so that launches can be planned and tested without it.
"""

from collections.abc import Iterable, Iterator, Sequence

# Elements per program, by whether loads are wide: a thread without them keeps an address for each
# element, and at 2048 the 8-bit kernel would spill registers on some GPUs.
SPANS = {True: 2048, False: 1024}
ALIGNED = 16  # the elements and bytes whose multiples allow wide loads


def split(evens: Iterable[bool]) -> Iterator[tuple[list[int], bool]]:
    """Yield the indices of tensors that allow wide loads (True), then of the others (False).

    Args:
        evens: ``is_even`` of each tensor.
    """
    known = list(evens)
    for kind in (True, False):
        chosen = [i for i, even in enumerate(known) if even is kind]
        if chosen:
            yield chosen, kind


def is_even(elements: int, addresses: Iterable[int]) -> bool:
    """Return True if a tensor's element count and the addresses of its parts allow wide loads."""
    return elements % ALIGNED == 0 and all(address % ALIGNED == 0 for address in addresses)


def fill(rows: Sequence[Sequence[int]], span: int) -> tuple[list[int], int]:
    """Return a launch's table as integers, and its number of programs.

    Args:
        rows: for each tensor its element count, then the other words of its row.
        span: elements per program.

    Returns:
        The words, first each tensor's first program and then the rows; and the programs.
    """
    starts, programs = [], 0
    for row in rows:
        starts.append(programs)
        programs += -(-row[0] // span)
    return [*starts, *(word for row in rows for word in row)], programs


def depth(tensors: int) -> int:
    """Return the number of bisection steps to find one of ``tensors`` tensors."""
    return max(tensors - 1, 0).bit_length()
