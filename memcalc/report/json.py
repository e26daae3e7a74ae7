"""Predictions as JSON; the keys are a contract, see docs/json.md."""

from collections.abc import Sequence
from typing import Any

from memcalc.files.artifact import document, encode
from memcalc.records.model import Place
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component

_ALWAYS = (
    Component.WEIGHTS,
    Component.MASTER_WEIGHTS,
    Component.GRADIENTS,
    Component.OPTIMIZER_STATE,
    Component.ACTIVATIONS,
    Component.TEMPORARIES,
)


def render(predictions: Sequence[Prediction]) -> str:
    """One prediction is an object; several are a list under ``predictions``."""
    bodies = [_body(prediction) for prediction in predictions]
    return document("prediction", bodies[0] if len(bodies) == 1 else {"predictions": bodies})


def _body(prediction: Prediction) -> dict[str, Any]:
    """The keys that others rely on; ``record`` holds everything, to be read back."""
    components = {name.value: prediction.components.get(name) for name in _ALWAYS}
    rest = {name.value: size for name, size in prediction.components.items() if size}
    state = prediction.optimizer_state

    def told(*names: str) -> dict[str, Any]:
        return {name: encode(getattr(prediction, name)) for name in names}

    return {
        "plan": encode(prediction.plan),
        "model": {"head": prediction.head, "task": prediction.task},
        "parameters": {
            "count": prediction.parameters,
            "tensors": prediction.parameter_tensors,
            "trainable": prediction.trainable,
        },
        "components": {**components, **rest},
        "optimizer_state": {
            "implementation": state.implementation,
            **{f"{place.value}_bytes": state.total(place) for place in Place},
            "notes": list(state.notes),
        },
        "phases": {
            phase.phase.value: {
                "peak_requested": phase.requested,
                "peak_allocated": phase.allocated,
                "peak_reserved": phase.reserved,
                "first_step_peak_allocated": phase.first_step_allocated,
            }
            for phase in prediction.phases
        },
        **told("peak", "context", "allocated", "allocator", "fit", "device", "gpus", "serving"),
        **told("sent"),
        "lengths": encode(prediction.varied),
        **told("rules_of_thumb", "method", "assumptions", "uncounted", "unknown", "versions"),
        "record": encode(prediction),
    }
