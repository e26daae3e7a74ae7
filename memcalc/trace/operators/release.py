"""Which PyTorch operators run as: the one that will run, which need not be the installed one."""

from __future__ import annotations

from memcalc.version import NEWEST_TORCH

_runs = [NEWEST_TORCH]


def use(torch: tuple[int, int]) -> None:
    """From now on operators run as those of this release, such as (2, 13)."""
    _runs[0] = torch


def is_since(major: int, minor: int) -> bool:
    """What runs is this release or a newer one."""
    return _runs[0] >= (major, minor)
