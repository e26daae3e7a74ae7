"""The answer for a program that uses several GPUs in one process."""

from __future__ import annotations

from msgspec.structs import replace

from memcalc.estimation.estimate import Traced
from memcalc.records.prediction import FitVerdict, OnGpu

_WORST = FitVerdict.FITS, FitVerdict.TIGHT, FitVerdict.DOES_NOT_FIT


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
