"""Compares a prediction with a measurement: signed errors by part, rung and phase."""

from collections.abc import Iterator, Sequence

import msgspec

from memcalc.files.results import Run
from memcalc.records.measurement import Measurement, steady_peak, steady_peaks
from memcalc.records.model import Place
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component, Phase


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, predicted and measured, in bytes."""

    name: str
    predicted: int
    measured: int

    @property
    def error(self) -> int:
        """The predicted bytes minus the measured bytes."""
        return self.predicted - self.measured

    @property
    def relative(self) -> float | None:
        """The error as a share of the measured bytes, or None if those are 0."""
        return self.error / self.measured if self.measured else None


def compare(prediction: Prediction, measurement: Measurement) -> list[Difference]:
    """Return the differences of all figures that both have, the largest error first.

    A run that ended out of memory has no steady step; only its earlier figures are compared.
    """
    pairs = [
        *_pair_optimizer_states(prediction, measurement),
        ("weights", _sum_weights(prediction), measurement.weights),
        ("gradients", prediction.gradients, measurement.gradients),
        *_pair_phases(prediction, measurement),
        ("reserved", prediction.peak.reserved, steady_peak(measurement, "reserved")),
        ("process", prediction.peak.process_used, measurement.process_used),
    ]
    if measurement.gpu is not None and prediction.context is not None:
        outside = measurement.gpu.outside_allocator
        pairs.append(("context and kernels", prediction.context.likely, outside))
    found = [
        Difference(name=name, predicted=predicted, measured=measured)
        for name, predicted, measured in pairs
        if predicted is not None and measured is not None
    ]
    return sorted(found, key=lambda difference: -abs(difference.error))


Pair = tuple[str, int | None, int | None]


def _sum_weights(prediction: Prediction) -> int | None:
    """Return the bytes of all parameters at the peak, without constants of quantized ones."""
    if prediction.peak.phase in (Phase.LOAD, Phase.PREPARE) and prediction.plan.scheme is not None:
        return None
    held = prediction.components
    plain, quantized = held.get(Component.WEIGHTS), held.get(Component.QUANTIZED_WEIGHTS)
    return plain if plain is None else plain + (quantized or 0)


def _pair_optimizer_states(prediction: Prediction, measurement: Measurement) -> Iterator[Pair]:
    state, real = prediction.optimizer_state, measurement.state
    if real is None:
        return
    if measurement.device == "cpu":
        # Everything is in the same memory there, and nothing is managed.
        predicted = sum(state.total(place) for place in Place)
        yield "optimizer state", predicted, real.device + real.host + real.managed
        return
    for place in Place:
        predicted, measured = state.total(place), getattr(real, place.value)
        if place is Place.DEVICE or predicted or measured:
            yield f"optimizer state ({place.value})", predicted, measured


def _pair_phases(prediction: Prediction, measurement: Measurement) -> Iterator[Pair]:
    measured = steady_peaks(measurement.phases)
    for phase in prediction.phases:
        # Reserved memory stays reserved, so its phase is not compared.
        for rung in ("requested", "allocated"):
            level = measured.get(phase.phase, {}).get(rung)
            yield f"{phase.phase.value} {rung}", getattr(phase, rung), level


def pairs(runs: Sequence[Run], rung: str = "allocated") -> list[tuple[str, Difference]]:
    """Return the predicted and measured peak of each run that has both, with the run's name."""
    found = []
    for run in runs:
        if run.prediction is not None and run.measurement is not None:
            both = peak(run.prediction, run.measurement, rung)
            if both is not None:
                found.append((f"{run.plan.model} {run.plan.optim} {run.plan.precision}", both))
    return found


def peak(prediction: Prediction, measurement: Measurement, rung: str) -> Difference | None:
    """Return a run's peak, predicted and measured, at a level such as ``reserved``, or None."""
    measured = steady_peak(measurement, rung)
    predicted = [getattr(phase, rung) for phase in prediction.phases]
    if measured is None or any(value is None for value in predicted):
        return None
    return Difference(name=f"peak {rung}", predicted=max(predicted), measured=measured)
