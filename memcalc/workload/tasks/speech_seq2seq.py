"""Speech to text by an encoder with a decoder, as Whisper."""

from typing import Any

from memcalc.workload.tasks import Shapes, Task

_TOKENS = 128
"""Of one transcript."""


def _labels(shapes: Shapes) -> dict[str, Any]:
    return {"labels": shapes.tokens(_TOKENS)}


TASK = Task(
    name="speech-seq2seq",
    heads="MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    suffix="ForSpeechSeq2Seq",
    # Whisper also has a classifier.
    chosen=((10, "speech-seq2seq"),),
    labels=_labels,
    of_sound=True,
)
