"""Traces a deep model through a few of its layers, and proves on the spot that this is enough.

Three and four repetitions of the layers are traced; what the fourth adds to sizes is learnt from
the pair; continued to five, the result must equal a trace of five, event by event. Only then it
is continued to the full depth. Otherwise the model is traced whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from memcalc.trace.layers import Stack, cut, find
from memcalc.trace.raw import Raw, canonical
from memcalc.trace.unfold import BASE, CannotUnfoldError, unfold

LEAST_REPEATS = 16
"""Below this, three traces of three to five repetitions cost as much as a whole one."""

Run = Callable[[Sequence[Stack], int], Raw]
"""Traces the model with its stacks cut to a number of repetitions (0: not cut)."""


def trace_folded(model: torch.nn.Module, run: Run) -> tuple[Raw, bool]:
    """Trace a model, folding its repeated layers where that is proven.

    Args:
        model: on the meta device.
        run: traces it as it is at that moment.

    Returns:
        The trace of the whole model, and whether it was folded.
    """
    stacks = find(model, LEAST_REPEATS)
    if stacks:
        try:
            return _folded(model, stacks, run), True
        except CannotUnfoldError:
            pass
    return run([], 0), False


def _folded(model: torch.nn.Module, stacks: Sequence[Stack], run: Run) -> Raw:
    traces = []
    for repeats in (BASE, BASE + 1, BASE + 2):
        with cut(model, stacks, repeats):
            traces.append(run(stacks, repeats))
    base, next_one, proof = traces
    growth = _growth(unfold(base, stacks, BASE + 1, {}), next_one)
    if canonical(unfold(base, stacks, BASE + 2, growth)) != canonical(proof):
        raise CannotUnfoldError("five repetitions are not what three and four foretell")
    return unfold(base, stacks, stacks[0].repeats, growth)


def _growth(foretold: Raw, real: Raw) -> dict[int, int]:
    """Storages of the base trace whose size differs in a trace one repetition deeper."""
    if len(foretold.storages) != len(real.storages) or foretold.origins is None:
        raise CannotUnfoldError("one more repetition makes other storages than foretold")
    trio = zip(foretold.origins, foretold.storages, real.storages, strict=True)
    return {
        base: true.bytes - guess.bytes for base, guess, true in trio if true.bytes != guess.bytes
    }
