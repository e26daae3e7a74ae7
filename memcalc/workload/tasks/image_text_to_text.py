"""Language models that see, trained whole on batches of text."""

from memcalc.workload.tasks import Task

TASK = Task(
    name="image-text-to-text",
    heads="MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    suffix="ForConditionalGeneration",
    chosen=((95, "image-text-to-text"),),
    named=True,
    of_text=True,
    packed=True,
    vocabulary=True,
)
