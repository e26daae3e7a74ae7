"""How much the allocator reserves on a GPU that is too small for its whole cache."""

from __future__ import annotations

from memcalc.records.prediction import Part, Span

GIVEN_BACK = "cached blocks that the allocator frees as the GPU fills up"


def given_back(reserved: int, unlimited: int) -> Span:
    """The range from what is reserved on this GPU to what is reserved on a larger one.

    Args:
        reserved: bytes, from a replay at the GPU's size, which freed cached blocks.
        unlimited: the same on a larger GPU.
    """
    low, high = min(reserved, unlimited), max(reserved, unlimited)
    source = "replayed at the GPU's size and without a limit; the larger is that of a larger GPU"
    part = Part(name=GIVEN_BACK, low=low, likely=reserved, high=high, source=source)
    return Span(low=low, likely=reserved, high=high, source=GIVEN_BACK, parts=(part,))
