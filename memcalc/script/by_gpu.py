"""The parts of a trace that are on each of several GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from memcalc.estimation.estimate import Traced
from memcalc.records.prediction import FitVerdict, OnGpu
from memcalc.records.trace import Trace
from memcalc.script.gpu import EVERYWHERE

_WORST = FitVerdict.FITS, FitVerdict.TOO_CLOSE, FitVerdict.DOES_NOT_FIT


def part(trace: Trace, storages_on: Sequence[int], asides_on: Sequence[int], gpu: int) -> Trace:
    """What happens on one GPU.

    Args:
        trace: of all.
        storages_on: the GPU of each storage.
        asides_on: the GPU of each aside, or ``EVERYWHERE``.
        gpu: the number of that one.
    """
    own = [number for number, on in enumerate(storages_on) if on == gpu]
    numbers = {number: new for new, number in enumerate(own)}
    events: list[int] = []
    at = [0]
    for event in trace.events:
        new = numbers.get(event if event >= 0 else ~event)
        if new is not None:
            events.append(new if event >= 0 else ~new)
        at.append(len(events))
    asides = [
        replace(aside, index=at[aside.index], storage=numbers.get(aside.storage, -1))
        for aside, on in zip(trace.asides, asides_on, strict=True)
        if on in (gpu, EVERYWHERE)
    ]
    return replace(
        trace,
        storages=tuple(trace.storages[number] for number in own),
        events=tuple(events),
        marks=tuple(replace(mark, index=at[mark.index]) for mark in trace.marks),
        asides=tuple(asides),
    )


def fullest(found: dict[int, Traced]) -> Traced:
    """The answer of several GPUs: that of the one on which most is, beside the peaks of all.

    Args:
        found: what was found of each, by its number.
    """
    device = max(found, key=lambda gpu: (_need(found[gpu]), -gpu))
    chosen = found[device]
    gpus = tuple(
        OnGpu(index=gpu, peak=one.prediction.peak, fit=one.prediction.fit)
        for gpu, one in found.items()
    )
    answer = replace(chosen.prediction, device=device, gpus=gpus)
    return replace(chosen, prediction=answer)


def _need(one: Traced) -> tuple[int, int, int]:
    """How bad it is: whether it fits, and how much is reserved and allocated."""
    fit, peak = one.prediction.fit, one.prediction.peak
    verdict = fit.verdict if fit is not None else None
    worst = _WORST.index(verdict) if verdict is not None else 0
    return worst, peak.reserved or 0, peak.allocated or 0
