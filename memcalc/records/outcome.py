"""What goes wrong with a script's memory: a request without room, growth from step to step."""

from __future__ import annotations

import msgspec

from memcalc.records.storage import Phase

LONGER = "what a longer run reserves"
"""Begins what is not counted of a run whose steps differ."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The request that found no room on a GPU, and ended the run."""

    device: int
    phase: Phase
    step: int
    line: str
    """Of the user's code; empty: nobody knows."""
    asked: int
    """Bytes that were asked for."""
    free: int
    """Bytes that the GPU had left."""
    last: bool = False
    """The figures end here: without a limit the script failed as well."""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What a script holds grows by the same amount in every step."""

    bytes: int
    """In a step."""
    line: str
    """Of the user's code that asks for most of it; empty: nobody knows."""
    holder: str = ""
    """The variable that holds most of it; empty: nobody knows."""
    steps: int | None = None
    """After about so many the GPU is full; ``None``: no GPU is named."""

    @property
    def runs_full(self) -> bool:
        """The GPU is full before a training of usual length has ended."""
        return self.steps is not None and self.steps < _LONG


_LONG = 100_000
"""Steps that few trainings make: a loss that is kept in a list fills no GPU by then."""
