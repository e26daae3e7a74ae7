"""Speech to text by connectionist temporal classification."""

from typing import Any

from memcalc.workload.tasks import Shapes, Task

_CHARACTERS = 32
"""Of one transcript."""


def _labels(shapes: Shapes) -> dict[str, Any]:
    return {"labels": shapes.tokens(_CHARACTERS)}


TASK = Task(
    name="ctc",
    heads="MODEL_FOR_CTC_MAPPING_NAMES",
    suffix="ForCTC",
    chosen=((70, "ctc"),),
    labels=_labels,
)
