"""A class for each recording."""

from memcalc.workload.tasks import Task, class_labels

TASK = Task(
    name="audio-classification",
    heads="MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    suffix="ForAudioClassification",
    chosen=((80, "audio-classification"),),
    labels=class_labels,
)
