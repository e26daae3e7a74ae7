"""What the allocator holds on a GPU that is too small for all that it would keep."""

from __future__ import annotations

from memcalc.records.prediction import Part, Span

GIVEN_BACK = "cached blocks that the allocator gives back as the GPU fills up"


def given_back(reserved: int, unlimited: int) -> Span:
    """Between what is reserved on the GPU and on a larger one.

    Args:
        reserved: bytes by a replay that gave cached blocks back.
        unlimited: the same on a larger GPU.
    """
    low, high = min(reserved, unlimited), max(reserved, unlimited)
    source = "replayed at the GPU's size and without a limit; on a larger GPU it is the larger"
    part = Part(name=GIVEN_BACK, low=low, likely=reserved, high=high, source=source)
    return Span(low=low, likely=reserved, high=high, source=GIVEN_BACK, parts=(part,))
