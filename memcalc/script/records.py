"""How a simulated program ended."""

from __future__ import annotations

import msgspec

from memcalc.records.outcome import Refusal


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a program."""

    code: int
    """Its exit code."""
    stopped: bool = False
    """It was stopped after as many optimizer steps as were asked for."""
    steps: int = 0
    """Optimizer steps that it made."""
    out_of_memory: str = ""
    """What PyTorch said of memory, where that ended the program."""
    refusal: Refusal | None = None
    """The request that found no room, where that ended the program."""
    started: tuple[str, ...] = ()
    """Python programs that it started by subprocess, as they would be typed."""
    note: str = ""
    """What a person must know of the answer, in one sentence."""
