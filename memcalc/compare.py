"""A prediction beside a measurement: signed errors, rung by rung and phase by phase."""

from __future__ import annotations

from dataclasses import dataclass

from memcalc.records import Component, Measurement, Phase, Place, Prediction

RUNGS = ("requested", "allocated", "reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure, predicted and measured, in bytes."""

    name: str
    predicted: int
    measured: int

    @property
    def error(self) -> int:
        """Predicted less measured."""
        return self.predicted - self.measured

    @property
    def relative(self) -> float | None:
        """Of the measured; ``None`` where nothing was measured."""
        return self.error / self.measured if self.measured else None


def steady_peaks(measurement: Measurement) -> dict[Phase, dict[str, int]]:
    """The highest level of each rung in each phase of the last step."""
    last = max((reading.step for reading in measurement.phases), default=0)
    peaks: dict[Phase, dict[str, int]] = {}
    for reading in measurement.phases:
        if reading.step == last and reading.phase is not Phase.LOAD:
            known = peaks.setdefault(reading.phase, dict.fromkeys(RUNGS, 0))
            for rung in RUNGS:
                known[rung] = max(known[rung], getattr(reading, rung))
    return peaks


def compare(prediction: Prediction, measurement: Measurement) -> list[Difference]:
    """Every figure that both have, the largest error first.

    A run that ended out of memory has no steady step; only what it reached is compared.
    """
    found = []
    if measurement.state is not None:
        found += [
            Difference(
                name=f"optimizer state ({place.value})",
                predicted=prediction.optimizer_state.total(place),
                measured=getattr(measurement.state, place.value),
            )
            for place in Place
        ]
    weights = prediction.components.get(Component.WEIGHTS)
    if weights is not None:
        found.append(Difference(name="weights", predicted=weights, measured=measurement.weights))
    measured = steady_peaks(measurement)
    for phase in prediction.phases:
        for rung in RUNGS:
            value = getattr(phase, rung)
            if phase.phase in measured and value is not None:
                found.append(
                    Difference(
                        name=f"{phase.phase.value} {rung}",
                        predicted=value,
                        measured=measured[phase.phase][rung],
                    )
                )
    return sorted(found, key=lambda difference: -abs(difference.error))


def peak(prediction: Prediction, measurement: Measurement, rung: str) -> Difference | None:
    """The peak of a run on one rung."""
    measured = [levels[rung] for levels in steady_peaks(measurement).values()]
    predicted = [getattr(phase, rung) for phase in prediction.phases]
    if not measured or any(value is None for value in predicted):
        return None
    return Difference(name=f"peak {rung}", predicted=max(predicted), measured=max(measured))
