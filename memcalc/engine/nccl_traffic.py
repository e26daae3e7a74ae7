"""Computes the bytes sent through NCCL from the counts of the stub NCCL library.

The library counts the bytes that a process gives to a collective. The bytes sent follow from a ring
(NVIDIA/nccl-tests, ``doc/PERFORMANCE.md``); NCCL may use a tree, or a switch that adds up, if that
is quicker.
"""

import ctypes

from memcalc.engine.stub import load as stub
from memcalc.records.trace import Sent

Counts = dict[tuple[str, int], tuple[int, int]]
"""Calls and bytes, by collective and processes of the group."""


def read_counts() -> Counts:
    """Return the calls and bytes of all collectives so far; empty without the stub driver."""
    read = stub.function("sent", ctypes.c_char_p)
    ranks, calls, given = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
    outputs = [ctypes.byref(one) for one in (ranks, calls, given)]
    found: Counts = {}
    while read is not None and (name := read(len(found), *outputs)) is not None:
        found[name.decode(), ranks.value] = (calls.value, given.value)
    return found


def count_sent(before: Counts, after: Counts) -> tuple[Sent, ...]:
    """Return the calls and bytes sent between two readings of the counts."""
    found = []
    for (name, ranks), (calls, given) in after.items():
        calls_before, given_before = before.get((name, ranks), (0, 0))
        if calls > calls_before:
            sent = _ring_bytes(name, given - given_before, ranks)
            found.append(Sent(collective=name, ranks=ranks, calls=calls - calls_before, bytes=sent))
    return tuple(found)


def _ring_bytes(name: str, given: int, ranks: int) -> int:
    """Return the bytes that a rank sends in a ring for the bytes given to a collective."""
    if name == "all-reduce":
        return 2 * given * (ranks - 1) // ranks
    if name in ("all-gather", "reduce-scatter"):
        # Each passes on the parts of all others but one, which are as large as its own.
        return given * (ranks - 1)
    return given
