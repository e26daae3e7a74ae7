"""A class for each image."""

from memcalc.workload.tasks import Task, class_labels

TASK = Task(
    name="image-classification",
    heads="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    suffix="ForImageClassification",
    chosen=((60, "image-classification"),),
    labels=class_labels,
)
