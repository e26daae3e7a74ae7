"""A simulated run: every storage's allocation and free, in order."""

from __future__ import annotations

import msgspec

from memcalc.records.model import Inventory
from memcalc.records.storage import ONCE, Component, Phase, Storage

__all__ = ["ONCE", "Aside", "Component", "Mark", "Phase", "Reading", "Storage", "Trace"]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """From event ``index`` on, this phase of this step runs."""

    index: int
    phase: Phase
    step: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of PyTorch's own counters in one phase of one step, in bytes."""

    phase: Phase
    step: int
    requested: int
    allocated: int
    reserved: int


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """Something beside births and deaths that the allocator is told of, before event ``index``."""

    index: int
    what: str
    """``used_by``: another stream uses a storage; ``empty_cache``; ``keep_pool``: the stream is one
    within a private pool."""
    storage: int = -1
    stream: int = 0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a process sends in an optimizer step by one collective, in groups of one size."""

    collective: str
    """``all-reduce``, ``all-gather``, ``reduce-scatter``..."""
    ranks: int
    """Processes of the group."""
    calls: int
    bytes: int


SENT_SOURCE = "NVIDIA/nccl-tests, doc/PERFORMANCE.md"
"""Of how much a collective sends."""
EQUAL_LENGTHS = "batches of equal length"
"""How what is assumed of lengths begins."""
UNCOUNTED_FLOPS = "floating-point operations are not known"
"""How the assumption begins that says which operators PyTorch cannot count."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated run of some optimizer steps: every storage's birth and death, in order."""

    storages: tuple[Storage, ...]
    events: tuple[int, ...]
    """``n``: storage ``n`` is born; ``~n``: it dies."""
    marks: tuple[Mark, ...]
    inventory: Inventory
    steps: int
    seq: int | None = None
    flops: int | None = None
    """Floating-point operations of products, convolutions and attention in the last step."""
    sent: tuple[Sent, ...] = ()
    """Over several GPUs: what this process sends in the last step."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    whole: bool = False
    """A script ran as it is: what counts is the highest of all steps and of what lies around them,
    not only the last step."""
    asides: tuple[Aside, ...] = ()
    groups: tuple[int, ...] = ()
    """Of a script: processes in each group that sent something."""
    readings: tuple[Reading, ...] = ()
    """What PyTorch's counters said, phase by phase in order; empty: no allocator ran."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
