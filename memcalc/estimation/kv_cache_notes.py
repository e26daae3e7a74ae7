"""What an answer says of a cache of past tokens: what a token adds, and what is not exact of it."""

from __future__ import annotations

from collections.abc import Iterator

from memcalc.estimation.question import Asked
from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Phase, Trace


def said(question: Asked, trace: Trace) -> Iterator[str]:
    """All of it, a sentence each."""
    yield from _of_cache(question.plan, trace)


def _of_cache(plan: Plan, trace: Trace) -> Iterator[str]:
    """What a token adds to the cache, and when that is more than the weights."""
    if plan.gathers:
        yield from _of_gathered(plan, trace)
        return
    by_stream: dict[int, dict[int, int]] = {}
    for storage in trace.storages:
        if storage.component is Component.KV_CACHE and storage.phase is Phase.DECODE:
            made = by_stream.setdefault(storage.stream, {})
            made[storage.step] = made.get(storage.step, 0) + storage.bytes
    offloaded = plan.cache.startswith("offloaded") and bool(by_stream)
    # What comes back is made on a stream of its own; of a static cache, that is all that is made.
    made = max(by_stream.values(), key=lambda sizes: sum(sizes.values()), default={})
    steps = sorted(made)[-3:-1]
    if plan.generate is None or len(steps) < 2 or steps[1] != steps[0] + 1:
        return
    # A beam search makes its cache once more as it orders its beams.
    copies = 2 if plan.beams > 1 else 1
    each = (made[steps[1]] - made[steps[0]]) // (plan.batch * plan.beams * copies)
    if each <= 0:
        yield "the cache does not grow with the tokens that are generated"
        return
    weights = sum(p.bytes for p in trace.inventory.tensors if not p.buffer)
    sequences = plan.batch * plan.beams
    yield f"a token adds {each:,} bytes to the cache of its sequence"
    if offloaded:
        return
    yield (
        f"the KV cache of {sequences} {'sequence' if sequences == 1 else 'sequences'} exceeds the "
        f"weights ({weights:,} bytes) beyond {-(-weights // (each * sequences)):,} tokens each"
    )


def _of_gathered(plan: Plan, trace: Trace) -> Iterator[str]:
    """The same of a cache that quantises many tokens at once, as it does with a prompt."""
    held = sum(
        storage.bytes
        for storage in trace.storages
        if storage.component is Component.KV_CACHE and storage.phase is Phase.PREFILL
    )
    each = held // (plan.batch * plan.beams * (trace.seq or 1))
    yield f"a token takes {each:,} bytes of its sequence's cache once it is quantised"
