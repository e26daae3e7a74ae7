"""The levels of PyTorch's caching allocator: bytes on each rung of the memory ladder."""

import msgspec


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """Four rungs of the ladder at one moment, or the peak of each, in bytes."""

    requested: int
    allocated: int
    """Sizes of the blocks that hold the requests."""
    active: int
    """Allocated, and freed blocks that another stream may still use."""
    reserved: int
    """Memory that the allocator holds of the device."""


def highest(*levels: Levels) -> Levels:
    """Return the maximum of each memory level (requested, allocated, active, reserved)."""
    rungs = Levels.__struct_fields__
    return Levels(**{rung: max(getattr(one, rung) for one in levels) for rung in rungs})
