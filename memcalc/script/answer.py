"""The answer for a program: of each GPU that it used, by how it ended, and by how it grows."""

from collections.abc import Mapping

from msgspec.structs import replace

from memcalc.estimation.client import player
from memcalc.estimation.estimate import Traced
from memcalc.estimation.predict import predict
from memcalc.estimation.question import Asked
from memcalc.records.model import OptimizerState
from memcalc.records.prediction import LONGER, FitVerdict, OnGpu, Prediction
from memcalc.records.trace import Trace
from memcalc.script.growth import find_growth
from memcalc.script.records import Ending


def as_it_ended(traced: Traced, ending: Ending, room: int | None) -> Traced:
    """What the program's end says of its figures."""
    prediction = traced.prediction
    grows = find_growth(traced.trace, room, prediction.peak.reserved or 0)
    prediction = replace(prediction, growth=grows, refusal=ending.refusal)
    if grows is not None:
        # Steps differ since more is held, and a longer run holds more still.
        left = tuple(one for one in prediction.uncounted if not one.startswith(LONGER))
        prediction = replace(prediction, uncounted=left)
    fit = prediction.fit
    refused = ending.refusal is not None and not ending.refusal.by_own_limit
    if refused and fit is not None:
        prediction = replace(prediction, fit=replace(fit, verdict=FitVerdict.DOES_NOT_FIT))
    elif fit is not None and fit.verdict in _FITTING and grows and grows.runs_full:
        prediction = replace(prediction, fit=replace(fit, verdict=FitVerdict.LEAKS))
    elif ending.code:
        prediction = _until_then(prediction, ending.code)
    return replace(traced, prediction=prediction)


def _until_then(prediction: Prediction, code: int) -> Prediction:
    """A program that failed might have taken more: that it fits is not known then."""
    until_then = f"the script ended with exit code {code}; figures cover the run until then"
    told = replace(prediction, assumptions=(until_then, *prediction.assumptions))
    if told.fit is None or told.fit.verdict is FitVerdict.DOES_NOT_FIT:
        return told
    return replace(told, fit=None, unknown={**told.unknown, "fit": until_then})


_FITTING = FitVerdict.FITS, FitVerdict.TIGHT
_WORST = *_FITTING, FitVerdict.DOES_NOT_FIT


def answered(question: Asked, traces: Mapping[int, Trace], state: OptimizerState) -> Traced | None:
    """The answer of the GPU on which most is, beside the peaks of all; ``None``: none was used."""
    found = {
        gpu: Traced(prediction=predict(question, trace, state, player(question.plan)), trace=trace)
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
    return replace(chosen, prediction=replace(chosen.prediction, device=device, gpus=gpus))


def _need(one: Traced) -> tuple[int, int, int]:
    """How bad it is: whether it fits, and how much is reserved and allocated."""
    fit, peak = one.prediction.fit, one.prediction.peak
    worst = _WORST.index(fit.verdict) if fit is not None else 0
    return worst, peak.reserved or 0, peak.allocated or 0
