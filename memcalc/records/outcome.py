"""Failures of a script's memory: an out-of-memory request, or growth from step to step."""

from __future__ import annotations

import msgspec

from memcalc.records.storage import Phase


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The request that failed for lack of GPU memory and ended the run."""

    device: int
    phase: Phase
    step: int
    line: str
    """In the user's code; empty: unknown."""
    asked: int
    """Requested bytes."""
    free: int
    """Free bytes of the GPU."""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A script's memory grows by the same amount in every step."""

    bytes: int
    """In a step."""
    line: str
    """The line in the user's code that allocates most of it; empty: unknown."""
    steps: int | None = None
    """Steps until the GPU is full, about; ``None``: no GPU is named."""
