"""Traces a deep model through a few of its layers, and proves on the spot that this is enough.

Three repetitions of the layers are traced; continued to four, the result must equal a trace of
four, event by event. Where only sizes differ (a list with one entry a tensor grows), what each
repetition adds is learnt from the pair, and the proof is made on five. Only then it is continued
to the full depth. What a model does at one of its middle layers alone (a loss there, features that
are added) is in none of these, so one forward of the whole model is traced as well, in a process
beside this one where that can be, and must be what one of a few layers foretells. Otherwise the
model is traced whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from msgspec.structs import replace

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.children.fork import CodeError, Copy, can_go_beside
from memcalc.errors import EstimateError, MemcalcError
from memcalc.records.trace import Phase
from memcalc.symbolic.records import SYMBOLIC
from memcalc.trace import traffic
from memcalc.trace.folding.layers import Stack, cut, find
from memcalc.trace.folding.tagged import TaggedTrace, canonical, fingerprint
from memcalc.trace.folding.tensors import continued
from memcalc.trace.folding.unfold import BASE, CannotUnfoldError, unfold

LEAST_REPEATS = 13
"""Below this, three traces of three, four and five repetitions cost as much as a whole one."""

_PATIENCE = 4
"""A forward of the whole model takes about as long as all else; so many times as long at most."""

_AFTER_FORWARD = Phase.BACKWARD, Phase.DECODE


class Run(Protocol):
    """Traces the model with its stacks cut to a number of repetitions (0: not cut)."""

    def __call__(
        self, stacks: Sequence[Stack], repeats: int, until: tuple[Phase, ...] = ()
    ) -> TaggedTrace:
        """To the end, or the bare model until one of these phases begins, without gradients."""
        ...


def trace_folded(
    model: torch.nn.Module, run: Run, length: int = BASE, breadcrumbs: Breadcrumbs | None = None
) -> tuple[TaggedTrace, bool]:
    """Trace a model, folding its repeated layers where that is proven.

    Args:
        model: on the meta device.
        run: traces it as it is at that moment.
        length: repetitions in the trace that is continued; an odd number.
        breadcrumbs: this process may be copied, and leaves its place there.

    Returns:
        The trace of the whole model, and whether it was folded.
    """
    stacks = find(model, LEAST_REPEATS)
    if stacks:
        try:
            with _beside(lambda: fingerprint(run([], 0, _AFTER_FORWARD)), breadcrumbs) as forward:
                found = _folded(model, stacks, run, length)
                _prove_forward(model, stacks, run, forward)
            return found, True
        except MemcalcError:
            raise
        except Exception:
            # Either the proof fails, or the model does not run without all of its layers. Traced
            # whole it is always right; what is wrong with the model itself shows there again.
            pass
    return run([], 0), False


def _folded(model: torch.nn.Module, stacks: Sequence[Stack], run: Run, length: int) -> TaggedTrace:
    def cut_to(repeats: int) -> TaggedTrace:
        with cut(model, stacks, repeats):
            return run(stacks, repeats)

    base, one_more = cut_to(length), cut_to(length + 1)
    foretold = unfold(base, stacks, length + 1, {}, length)
    increments: dict[int, int] = {}
    if canonical(foretold) != canonical(one_more):
        increments = _increments(foretold, one_more)
        if canonical(unfold(base, stacks, length + 2, increments, length)) != canonical(
            cut_to(length + 2)
        ):
            raise CannotUnfoldError("two repetitions more are not what one more foretells")
    whole = unfold(base, stacks, stacks[0].repeats, increments, length)
    if base.inventory is not None:
        whole = replace(whole, inventory=continued(base.inventory, stacks))
    times = stacks[0].repeats - length
    whole = replace(whole, sent=traffic.continued(base.sent, one_more.sent, times))
    if base.flops is None or one_more.flops is None:
        return replace(whole, flops=None)
    return replace(whole, flops=base.flops + (one_more.flops - base.flops) * times)


@contextlib.contextmanager
def _beside(
    work: Callable[[], str], breadcrumbs: Breadcrumbs | None
) -> Iterator[Callable[[], str]]:
    """Begin work in a copy of this process, if that is possible; else it is done when asked for.

    Yields:
        What waits for its result, or raises as it did.
    """
    if breadcrumbs is None or not can_go_beside():
        yield work
        return

    def apart() -> dict[str, Any]:
        breadcrumbs.part()
        # Threads of the pool for operators on the CPU are not in the copy.
        torch.set_num_threads(1)
        return {"found": work()}

    with Copy(apart, "proof") as copy:
        begun = time.monotonic()

        def found() -> str:
            try:
                return str(copy.answer(_PATIENCE * max(1.0, time.monotonic() - begun))["found"])
            except CodeError as error:
                raise CannotUnfoldError(str(error)) from error
            except (EstimateError, TimeoutError):
                # Nothing is known of a copy that died; here it is as it always was.
                return work()

        yield found


def _prove_forward(
    model: torch.nn.Module, stacks: Sequence[Stack], run: Run, whole: Callable[[], str]
) -> None:
    """See that a forward of the whole model is what one through a few layers foretells.

    Args:
        model: on the meta device.
        stacks: its repeated layers.
        run: traces it.
        whole: the fingerprint of a forward of the whole model.

    Raises:
        CannotUnfoldError: it is not.
    """

    def begun(repeats: int) -> TaggedTrace:
        with cut(model, stacks, repeats):
            return run(stacks, repeats, _AFTER_FORWARD)

    depth = stacks[0].repeats
    try:
        few = begun(BASE)
        if fingerprint(unfold(few, stacks, depth, {})) == (known := whole()):
            return
    except MemcalcError as error:
        # The bare model may not run where the one that was asked for does; that one decides.
        raise CannotUnfoldError("the bare model does not run") from error
    increments = _increments(unfold(few, stacks, BASE + 1, {}), begun(BASE + 1))
    if fingerprint(unfold(few, stacks, depth, increments)) != known:
        raise CannotUnfoldError("the whole model does not run as a few of its layers foretell")


def _increments(foretold: TaggedTrace, real: TaggedTrace) -> dict[int, int]:
    """Storages of the base trace whose size differs in a trace one repetition deeper."""
    if len(foretold.storages) != len(real.storages) or foretold.origins is None:
        raise CannotUnfoldError("one more repetition makes other storages than foretold")
    increments = {}
    for base, guess, true in zip(foretold.origins, foretold.storages, real.storages, strict=True):
        if true.bytes != guess.bytes:
            if max(true.bytes, guess.bytes) >= SYMBOLIC:
                raise CannotUnfoldError("one more repetition changes a size that has symbols")
            increments[base] = true.bytes - guess.bytes
    return increments
