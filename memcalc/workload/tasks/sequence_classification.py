"""A class for each text; what encoders of text are most often trained for."""

from memcalc.workload.tasks import Task, class_labels

TASK = Task(
    name="sequence-classification",
    heads="MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    suffix="ForSequenceClassification",
    # Whatever fills in masked tokens is an encoder.
    chosen=((40, "masked-lm"), (90, "sequence-classification")),
    num_labels=2,
    labels=class_labels,
    of_text=True,
    by_last_token=True,
)
