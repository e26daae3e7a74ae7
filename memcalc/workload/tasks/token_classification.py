"""A class for each token."""

from memcalc.workload.tasks import Task

TASK = Task(
    name="token-classification",
    heads="MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    suffix="ForTokenClassification",
    num_labels=2,
    of_text=True,
)
