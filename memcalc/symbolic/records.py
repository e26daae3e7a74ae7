"""A trace whose sizes are formulas of batch ``b`` and sequence length ``s``.

It is made by running the program once on symbols. Every size is then an exact formula, every
decision that the code took on a size is a condition, and every call of a kernel whose own memory
depends on the target is written down with its arguments. Where the conditions hold, the trace of
any batch and sequence can be written down without running anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.kernels.formulas import KernelCall
from memcalc.records.trace import Trace

SYMBOLIC = 1 << 60
"""From here on, a storage's bytes are no bytes but the number of an entry (see ``code``)."""


class Kind(IntEnum):
    """What a storage with a number for bytes stands for."""

    SIZE = 0
    """A storage; its bytes are a formula."""
    BEFORE = 1
    """What a kernel takes before its outputs are made."""
    AFTER = 2
    """What it takes afterwards; both are given back with the first."""
    PERSISTENT = 3
    """What a library takes once and keeps."""


def code(kind: Kind, number: int) -> int:
    """The bytes that stand for entry ``number`` of its kind."""
    return SYMBOLIC + number * len(Kind) + kind


def entry(bytes_: int) -> tuple[Kind, int]:
    """What a number for bytes stands for."""
    number, kind = divmod(bytes_ - SYMBOLIC, len(Kind))
    return Kind(kind), number


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A batch size and a sequence length (``None`` where inputs have none)."""

    batch: int
    seq: int | None


class AttentionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which attention kernel ran; elsewhere the same one must be chosen."""

    call: dict[str, Any]
    """Fields of ``kernels.attention.AttentionCall`` but for the type; numbers or formulas."""
    dtype: str
    allowed: tuple[str, ...] | None
    chosen: str


class SymbolicTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A symbolic trace and where it holds."""

    trace: Trace
    """Its storages' bytes may be numbers of entries, see ``code``."""
    learnt_at: Point
    """The point whose decisions the conditions repeat."""
    sizes: tuple[str, ...]
    calls: tuple[KernelCall, ...]
    """Texts among their arguments are formulas."""
    choices: tuple[AttentionChoice, ...]
    asked: dict[str, str]
    """What else the program asked of its target, by names of ``Target``, and what that was."""
    conditions: tuple[str, ...]
    """Formulas that must be true."""
    default_seq: int | None
    """Tokens per sample where a plan names none; ``None`` where inputs have none."""
    longest: int | None
    """The longest sequence the model takes, where it has a limit."""

    @property
    def without_events(self) -> SymbolicTrace:
        """The same without what makes it large; a file of its trace holds that."""
        bare = replace(self.trace, storages=(), events=(), marks=())
        return replace(self, trace=bare)
