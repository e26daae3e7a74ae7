"""Bytes sent through NCCL, as counted by the stub NCCL library.

NCCL says how many bytes a process gives to a collective. What it sends for them is that of a ring
(NVIDIA/nccl-tests, ``doc/PERFORMANCE.md``); NCCL may take a tree, or let a switch add up, where
that is quicker.
"""

import ctypes

from memcalc.engine.stub import load as stub
from memcalc.records.trace import Sent

Counts = dict[tuple[str, int], tuple[int, int]]
"""Calls and bytes, by collective and processes of the group."""


def so_far() -> Counts:
    """What was given to collectives since the process began; nothing without the stub driver."""
    read = stub.function("sent", ctypes.c_char_p)
    ranks, calls, given = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
    told = [ctypes.byref(one) for one in (ranks, calls, given)]
    found: Counts = {}
    while read is not None and (name := read(len(found), *told)) is not None:
        found[name.decode(), ranks.value] = (calls.value, given.value)
    return found


def between(before: Counts, after: Counts) -> tuple[Sent, ...]:
    """What was sent from one moment to another."""
    found = []
    for (name, ranks), (calls, given) in after.items():
        calls_before, given_before = before.get((name, ranks), (0, 0))
        if calls > calls_before:
            sent = _in_a_ring(name, given - given_before, ranks)
            found.append(Sent(collective=name, ranks=ranks, calls=calls - calls_before, bytes=sent))
    return tuple(found)


def _in_a_ring(name: str, given: int, ranks: int) -> int:
    if name == "all-reduce":
        return 2 * given * (ranks - 1) // ranks
    if name in ("all-gather", "reduce-scatter"):
        # Each passes on the parts of all others but one, which are as large as its own.
        return given * (ranks - 1)
    return given
