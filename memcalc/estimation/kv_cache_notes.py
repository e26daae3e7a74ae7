"""Notes on the KV cache: bytes per token, and when it exceeds the weights."""

from __future__ import annotations

from collections.abc import Iterator

from memcalc.estimation.question import Asked
from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Phase, Trace


def said(question: Asked, trace: Trace) -> Iterator[str]:
    """One sentence per note."""
    yield from _of_cache(question.plan, trace)


def _of_cache(plan: Plan, trace: Trace) -> Iterator[str]:
    """Bytes that a token adds to the cache, and when the cache exceeds the weights."""
    if plan.gathers:
        yield from _of_gathered(plan, trace)
        return
    by_stream: dict[int, dict[int, int]] = {}
    for storage in trace.storages:
        if storage.component is Component.KV_CACHE and storage.phase is Phase.DECODE:
            made = by_stream.setdefault(storage.stream, {})
            made[storage.step] = made.get(storage.step, 0) + storage.bytes
    offloaded = plan.cache.startswith("offloaded") and bool(by_stream)
    # Offloaded layers are copied back on another stream, the only allocations of a static cache.
    made = max(by_stream.values(), key=lambda sizes: sum(sizes.values()), default={})
    steps = sorted(made)[-3:-1]
    if plan.generate is None or len(steps) < 2 or steps[1] != steps[0] + 1:
        return
    # A beam search copies its cache when it reorders its beams.
    copies = 2 if plan.beams > 1 else 1
    each = (made[steps[1]] - made[steps[0]]) // (plan.batch * plan.beams * copies)
    if each <= 0:
        yield "generated tokens do not grow the KV cache"
        return
    weights = sum(p.bytes for p in trace.inventory.tensors if not p.buffer)
    sequences = plan.batch * plan.beams
    yield f"each token adds {each:,} bytes to its sequence's KV cache"
    if offloaded:
        return
    yield (
        f"the KV cache of {sequences} {'sequence' if sequences == 1 else 'sequences'} exceeds the "
        f"weights beyond {-(-weights // (each * sequences)):,} tokens each"
    )


def _of_gathered(plan: Plan, trace: Trace) -> Iterator[str]:
    """The same for a cache that quantizes many tokens at once, such as a prompt."""
    held = sum(
        storage.bytes
        for storage in trace.storages
        if storage.component is Component.KV_CACHE and storage.phase is Phase.PREFILL
    )
    each = held // (plan.batch * plan.beams * (trace.seq or 1))
    yield f"each token takes {each:,} bytes of its sequence's KV cache once quantized"
