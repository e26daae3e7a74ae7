"""Texts and images side by side, as CLIP."""

from memcalc.workload.tasks import Task

TASK = Task(
    name="contrastive",
    heads="MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    chosen=((30, "contrastive"),),
    in_batch=True,
)
