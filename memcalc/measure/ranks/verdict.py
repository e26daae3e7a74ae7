"""Which of the ranks failed first, in words; the others went because of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from memcalc.children.exit_reason import ending
from memcalc.measure.ranks.member import Member
from memcalc.records.measurement import RankReading


def first_failure(
    members: Sequence[Member], failures: Mapping[int, int], kills: int | None
) -> str | None:
    """What the rank says or is said of that failed by itself; ``None``: none did.

    Args:
        members: all ranks, gone by now.
        failures: exit codes of those that torchrun saw fail, not ended by itself.
        kills: ``oom_kills`` from before.
    """
    short = [one for one in members if _out_of_memory(one)]
    if short:
        return None if len(short) == len(members) else f"The {short[0].name} ran out of memory."
    failed = [one for one in members if one.measurement is None or failures.get(one.rank)]
    if not failed:
        return None
    # A rank that says what went wrong beats one that just ended, and both one that lost another.
    spoke = [one for one in failed if one.error is not None and not one.deserted]
    died = [one for one in failed if one.error is None and failures.get(one.rank)]
    silent = [one for one in failed if one.error is None]
    blamed = min(spoke or died or silent or failed, key=lambda one: one.left or math.inf)
    if blamed.error is not None:
        return f"Rank {blamed.rank} of {len(members)}{blamed.place}: {blamed.error}"
    code = failures.get(blamed.rank)
    status = None if code is None else -code if code < 0 else code << 8
    return ending(blamed.name, status, kills=kills, where=blamed.place)


def where_they_are(members: Sequence[Member]) -> str:
    """Where those that are not through were last heard of."""
    waiting = [one for one in members if one.measurement is None]
    return ", ".join(f"rank {one.rank}{one.place}" for one in waiting) or "all ranks through"


def readings(members: Sequence[Member], trouble: str | None) -> tuple[RankReading, ...]:
    """What each rank came to."""
    return tuple(
        RankReading(rank=one.rank, measurement=one.measurement)
        if one.measurement is not None
        else RankReading(
            rank=one.rank,
            error=one.error or trouble or f"The {one.name} ended without an answer.",
            reached=tuple(one.reached),
        )
        for one in members
    )


def _out_of_memory(one: Member) -> bool:
    return one.measurement is not None and one.measurement.out_of_memory is not None
