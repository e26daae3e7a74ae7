"""Where in the text an answer begins and ends."""

from typing import Any

from memcalc.workload.tasks import Shapes, Task


def _labels(shapes: Shapes) -> dict[str, Any]:
    return {"start_positions": shapes.classes(), "end_positions": shapes.classes()}


TASK = Task(
    name="question-answering",
    heads="MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    suffix="ForQuestionAnswering",
    labels=_labels,
    always_labelled=True,
    of_text=True,
)
