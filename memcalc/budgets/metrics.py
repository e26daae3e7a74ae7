"""The figures a budget can name, and where each is found in an estimate or a measurement."""

from memcalc.budgets.records import Evidence, Figure
from memcalc.estimation.fits import describe_growth
from memcalc.records.measurement import Measurement, steady_peak
from memcalc.records.model import Place
from memcalc.records.prediction import RUNGS, Prediction
from memcalc.records.trace import Component

COMPONENTS = tuple(component.value for component in Component)
PER_PARAMETER = "bytes_per_parameter"
_RUNGS = tuple(f"peak.{rung}" for rung in RUNGS)
METRICS = (*_RUNGS, *COMPONENTS)
"""All that is counted in bytes."""


def default_peak(target: str, method: str) -> str:
    """Return the metric that ``peak`` means: ``peak.allocated``, or ``peak.requested`` on CPU.

    A CPU run and the closed forms know no allocator: there it is requested.
    """
    return "peak.requested" if target == "cpu" or method == "analytic" else "peak.allocated"


def figure(evidence: Evidence, metric: str) -> Figure:
    """Return a run's figure by metric name: measured if there is a measurement, else estimated.

    An estimate adds to a measurement only the components, which no measurement has.
    ``metric``: one of ``METRICS``, ``bytes_per_parameter`` or ``bytes_per_parameter.<component>``;
    the last two give bytes, to be divided by ``parameters``.
    """
    if evidence.error is not None:
        return Figure(bytes=None, reason=evidence.error)
    # The bytes behind a figure per parameter are those of the table's total, the requested.
    name = metric.removeprefix(f"{PER_PARAMETER}.")
    name = "peak.requested" if name == PER_PARAMETER else name
    if evidence.measurement is not None:
        found = _look_up_measurement(evidence.measurement, name)
        ran = evidence.measurement.out_of_memory is None
        if found.bytes is not None or evidence.prediction is None or name in _RUNGS or not ran:
            return found
    if evidence.prediction is None:
        return Figure(bytes=None, reason="there are no figures for this run")
    return _look_up_estimate(evidence.prediction, name)


def figures(evidence: Evidence) -> dict[str, int]:
    """Return all known figures of a run, in bytes by metric name."""
    found = {metric: figure(evidence, metric).bytes for metric in METRICS}
    return {metric: size for metric, size in found.items() if size is not None}


def parameters(evidence: Evidence) -> int | None:
    """Return the number of the model's parameters, or None if unknown."""
    known = evidence.prediction or evidence.measurement
    return known.parameters if known is not None else None


def _look_up_estimate(prediction: Prediction, metric: str) -> Figure:
    """Return a metric of a prediction in bytes, or why it is unknown."""
    if metric == Component.OPTIMIZER_STATE:
        # As the registry counts it: the same before, at and after the peak.
        return Figure(bytes=prediction.optimizer_state.total(Place.DEVICE))
    rung = metric.removeprefix("peak.")
    grows = prediction.growth
    if grows is not None and grows.matters and (rung != metric or metric == grows.component):
        return Figure(bytes=None, reason=f"{rung} has no limit: {describe_growth(grows)}")
    if rung != metric:
        value: int | None = getattr(prediction.peak, rung)
        reason = prediction.unknown.get(rung, f"the estimate holds no {rung} peak")
        return Figure(bytes=value, reason=reason if value is None else "")
    if not prediction.components:
        return Figure(bytes=None, reason="the estimate does not split its peak")
    return Figure(bytes=prediction.components.get(Component(metric), 0))


def _look_up_measurement(measurement: Measurement, metric: str) -> Figure:
    """Return a metric of a measurement in bytes, or why it is unknown."""
    failure = measurement.out_of_memory
    if failure is not None:
        where = f"{failure.phase.value} of step {failure.step}"
        reason = f"the run ended out of memory in {where}: {failure.message}"
        return Figure(bytes=None, source="measured", reason=reason)
    value: int | None = None
    if metric == Component.OPTIMIZER_STATE and measurement.state is not None:
        value = measurement.state.device
    elif metric == Component.WEIGHTS:
        value = measurement.weights
    elif metric == "peak.process_used":
        value = measurement.process_used
    elif metric in _RUNGS:
        on_cpu = measurement.device == "cpu"
        # PyTorch's CPU allocator gives what is requested, and reserves nothing.
        rung = "requested" if on_cpu else metric.removeprefix("peak.")
        if not on_cpu or metric != "peak.reserved":
            value = steady_peak(measurement, rung)
    if value is None:
        missing = f"the measurement does not include {metric.replace('_', ' ')}"
        reason = measurement.unknown.get(metric.removeprefix("peak."), missing)
        return Figure(bytes=None, source="measured", reason=reason)
    return Figure(bytes=value, source="measured")
