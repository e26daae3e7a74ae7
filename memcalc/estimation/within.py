"""What the allocator holds where workspaces are known only within limits: replays of several."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from memcalc.allocator.constants import SMALL_SEGMENT
from memcalc.records.prediction import Fit, FitVerdict, Part, Span
from memcalc.records.trace import Bound, Component, Trace

ALLOCATED = "allocated at the peak"
RESERVED = "reserved by PyTorch's allocator"
WORKSPACES = "workspaces of convolutions that are not known exactly"
ALIKE = (
    f"{WORKSPACES} are those of the recorded ones most like them "
    "(pip install nvidia-cudnn-cu13==9.20.* nvidia-cublas==13.1.1.* to ask cuDNN itself)"
)
MIXTURES = 16
"""Replays in which each workspace takes its least, likely or most by a draw of its own."""
ALONE = 16
"""Replays in which one of the largest takes its most, and all others what is likely."""
OPERATORS = ("convolution", "convolution_backward")
"""Whose workspaces those are, by the names of a trace."""


def variants(trace: Trace) -> Iterator[Trace]:
    """The trace with workspaces as they may be; none: all are known.

    First all take their least, then all their most. What the allocator reserves depends on how
    blocks of several sizes lie as well, so that it may lie outside of what these two take: in
    others each size is drawn for itself, always in the same way, and in the last ones the library
    plans one kind of convolution otherwise.
    """
    if not trace.bounds:
        return
    yield _sized(trace, {bound.bytes: _least(bound) for bound in trace.bounds})
    yield _sized(trace, {bound.bytes: bound.most for bound in trace.bounds})
    if len(trace.bounds) == 1:
        return
    draw = random.Random(0)
    for _ in range(MIXTURES):
        yield _sized(
            trace,
            {
                bound.bytes: draw.choice((_least(bound), bound.bytes, bound.most))
                for bound in trace.bounds
            },
        )
    largest = sorted(trace.bounds, key=lambda bound: (-bound.most, -bound.bytes))
    for bound in largest[:ALONE]:
        yield _sized(trace, {bound.bytes: bound.most})


def _least(bound: Bound) -> int:
    # What takes nothing keeps its place in the trace, in the smallest block.
    return max(bound.least, 1)


def _sized(trace: Trace, sizes: dict[int, int]) -> Trace:
    return replace(
        trace,
        storages=tuple(
            replace(storage, bytes=sizes[storage.bytes])
            if storage.component is Component.WORKSPACES
            and storage.op in OPERATORS
            and storage.bytes in sizes
            else storage
            for storage in trace.storages
        ),
    )


def span_of(name: str, trace: Trace, likely: int, found: Sequence[int]) -> Span | None:
    """Between what a figure lies; ``None``: it is known.

    Args:
        name: what is allocated or reserved.
        trace: the run.
        likely: bytes of it by the trace as it is.
        found: the same of its variants.
    """
    if not found:
        return None
    low, high = min(*found, likely), max(*found, likely)
    sizes = f"{len(trace.bounds)} size{'s' * (len(trace.bounds) > 1)}"
    others = f", and with {len(found) - 2} mixtures of these" if len(found) > 2 else ""
    source = f"{WORKSPACES}, {sizes}: replayed with the least, with the most{others}"
    part = Part(name=name, low=low, likely=likely, high=high, source=source)
    return Span(low=low, likely=likely, high=high, source=WORKSPACES, parts=(part,))


WITHOUT_GAPS = "blocks without gaps between them, as an older PyTorch may have laid them"
APART = "the largest block in a segment of its own, as an older PyTorch may have laid it"


def of_other_order(
    known: Span, reserved: int, *, allocated: int, largest: int, room: int, release: str
) -> Span:
    """The span of convolutions under a PyTorch older than any whose runs were recorded.

    In what order that took blocks and gave them back is not known, and with it how many gaps lie
    between them. At the least there are none. At the most a smaller one lies where the largest
    would go: under 2.5 recurrent layers reserved what they keep for backward twice, so
    (evidence/published/core-loss-3050.json).

    Args:
        known: by today's order.
        reserved: bytes by it.
        allocated: bytes at the peak, with the least that workspaces may take.
        largest: bytes of the largest block that a step makes.
        room: bytes that the allocator can have: it gives back what it does not use for them.
        release: of PyTorch.
    """
    least = min(_in_segments(allocated), reserved)
    source = f"what PyTorch {release} allocates at the peak: its order of blocks was not recorded"
    fewer = Part(name=WITHOUT_GAPS, low=least, likely=reserved, high=reserved, source=source)
    apart = min(_in_segments(largest), max(room - known.high, 0))
    source = f"the largest that a step makes under PyTorch {release}, whose order was not recorded"
    more = Part(name=APART, low=0, likely=0, high=apart, source=source)
    return replace(
        known,
        low=min(known.low, least),
        high=known.high + apart,
        parts=(*known.parts, fewer, more),
    )


def _in_segments(size: int) -> int:
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


GIVEN_BACK = "cached blocks that the allocator gives back as the GPU fills up"


def given_back(known: Span | None, reserved: int, unlimited: int) -> Span:
    """The span where a GPU is too small for all that the allocator would keep.

    Args:
        known: what is known only within limits besides.
        reserved: bytes by a replay that gave cached blocks back.
        unlimited: the same on a larger GPU.
    """
    low, high = min(reserved, unlimited), max(reserved, unlimited)
    source = "replayed at the GPU's size and without a limit; on a larger GPU it is the larger"
    part = Part(name=GIVEN_BACK, low=low, likely=reserved, high=high, source=source)
    if known is None:
        return Span(low=low, likely=reserved, high=high, source=GIVEN_BACK, parts=(part,))
    return replace(
        known,
        low=min(known.low, low),
        high=max(known.high, high),
        source=f"{known.source}; {GIVEN_BACK}",
        parts=(*known.parts, part),
    )


OTHER_CODE = "the code of the release that is named, in place of which today's was traced"


def of_other_code(known: Span | None, reserved: int, ends: tuple[int, int], source: str) -> Span:
    """The span where the code that will run is not the one that was traced.

    Args:
        known: what is known only within limits besides.
        reserved: bytes by the code that was traced.
        ends: bytes to add to them, at the least and at the most.
        source: of the ends.
    """
    low, high = reserved + ends[0], reserved + ends[1]
    part = Part(name=OTHER_CODE, low=low, likely=reserved, high=high, source=source)
    if known is None:
        return Span(low=low, likely=reserved, high=high, source=OTHER_CODE, parts=(part,))
    return replace(
        known,
        low=known.low + ends[0],
        high=known.high + ends[1],
        source=f"{known.source}; {OTHER_CODE}",
        parts=(*known.parts, part),
    )


def together(likely: Fit, others: list[Fit]) -> Fit:
    """A verdict that holds for every end; where they differ, it is too close to call."""
    if not others:
        return likely
    same = all(fit.verdict is likely.verdict for fit in others)
    high = [fit.needed_high for fit in (likely, *others) if fit.needed_high is not None]
    return replace(
        likely,
        verdict=likely.verdict if same else FitVerdict.TOO_CLOSE,
        needed_high=max(high, default=None),
    )
