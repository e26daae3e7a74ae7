"""A request that found no room on a GPU."""

from __future__ import annotations

import msgspec

from memcalc.records.trace import Phase


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The last request that found no room on a GPU."""

    device: int
    phase: Phase
    step: int
    line: str
    """Of the user's code; empty: nobody knows."""
    asked: int
    """Bytes that were asked for."""
    free: int
    """Bytes that the GPU had left."""
