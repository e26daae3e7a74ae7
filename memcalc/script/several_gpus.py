"""The answer for a program, which may use several GPUs in one process."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from memcalc.estimation.estimate import Traced
from memcalc.estimation.predict import predict
from memcalc.estimation.question import Asked
from memcalc.records.model import OptimizerState
from memcalc.records.prediction import FitVerdict, OnGpu
from memcalc.records.trace import Trace

_WORST = FitVerdict.FITS, FitVerdict.TIGHT, FitVerdict.DOES_NOT_FIT


def answered(question: Asked, traces: Mapping[int, Trace], state: OptimizerState) -> Traced | None:
    """The answer of the GPU on which most is, beside the peaks of all; ``None``: none was used.

    Args:
        question: what was run.
        traces: of each GPU that was used, by its number.
        state: what optimizers keep.
    """
    found = {
        gpu: Traced(prediction=predict(question, trace, state), trace=trace)
        for gpu, trace in traces.items()
    }
    if not found or [*found] == [0]:
        return found.get(0)
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
    worst = _WORST.index(fit.verdict) if fit is not None else 0
    return worst, peak.reserved or 0, peak.allocated or 0
