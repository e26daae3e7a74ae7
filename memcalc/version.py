"""The version of memcalc, and the newest PyTorch that it was held against."""

from __future__ import annotations

__version__ = "0.1.0"

NEWEST_TORCH = (2, 13)
"""Its allocator, operators and private names were read and compared with recorded runs."""


def newer_than_known(torch: tuple[int, int]) -> tuple[str, ...]:
    """What an answer for a version of PyTorch has to say: a sentence, or nothing."""
    if torch <= NEWEST_TORCH:
        return ()
    (given, known) = (".".join(map(str, version)) for version in (torch, NEWEST_TORCH))
    return (f"PyTorch {given} is newer than any that memcalc was held against ({known})",)
