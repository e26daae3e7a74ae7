"""Predictions as JSON; the keys are a contract, see docs/json.md."""

from __future__ import annotations

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
            "implementation": prediction.optimizer_state.implementation,
            **{f"{p.value}_bytes": prediction.optimizer_state.total(p) for p in Place},
            "notes": list(prediction.optimizer_state.notes),
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
        "peak": encode(prediction.peak),
        "context": encode(prediction.context),
        "allocated": encode(prediction.allocated),
        "allocator": encode(prediction.allocator),
        "fit": encode(prediction.fit),
        "device": prediction.device,
        "gpus": encode(prediction.gpus),
        "serving": encode(prediction.serving),
        "sent": encode(prediction.sent),
        "lengths": encode(prediction.varied),
        "rules_of_thumb": encode(prediction.rules_of_thumb),
        "method": prediction.method,
        "assumptions": list(prediction.assumptions),
        "uncounted": list(prediction.uncounted),
        "unknown": dict(prediction.unknown),
        "versions": dict(prediction.versions),
        "record": encode(prediction),
    }
