"""Finds the request of an out-of-memory message in a simulated run of the same program."""

from itertools import accumulate

from memcalc.estimation.kept import Traced
from memcalc.records.oom_text import FoundRequest, OomText, SimulatedAgain
from memcalc.records.trace import Trace, changes
from memcalc.units import GIB, MIB

_SMALL, _MIDDLE = MIB, 10 * MIB
"""A message names the segment that was asked of CUDA, not the tensor: 2 MiB for requests up to the
first size, 20 MiB below the second, else the next 2 MiB (c10/cuda/CUDACachingAllocator.h, 2.13)."""
_SEGMENTS = {2 * MIB: (0, _SMALL), 20 * MIB: (_SMALL, _MIDDLE)}
_GRAIN = 2 * MIB


def align(found: OomText, traced: Traced) -> SimulatedAgain:
    """Return the simulated run, with its request that is nearest to the one that failed."""
    peak = traced.prediction.peak
    return SimulatedAgain(
        command=traced.prediction.plan.command or "",
        needs=peak.process_used or peak.reserved or peak.requested,
        request=_find_request(found, traced.trace),
    )


def _find_request(found: OomText, trace: Trace) -> FoundRequest | None:
    """Return the request of the message's size that had most nearly as much allocated before."""
    # A message has two decimals.
    rounding = (GIB if found.asked >= GIB else MIB) // 200
    least, most = _SEGMENTS.get(
        found.asked, (found.asked - _GRAIN - rounding, found.asked + rounding)
    )
    sizes = [storage.bytes for storage in trace.storages]
    levels = accumulate(changes(trace.events, sizes), initial=0)
    alike = [
        (abs(level - found.allocated), level, event)
        for event, level in zip(trace.events, levels, strict=False)
        if event >= 0 and least < sizes[event] <= most
    ]
    if not alike:
        return None
    _, level, event = min(alike)
    return FoundRequest(storage=trace.storages[event], before=level)
