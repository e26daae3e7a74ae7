"""What an architecture was first trained for."""

from memcalc.workload.tasks import Task

TASK = Task(
    name="pretraining",
    heads="MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    suffix="ForPreTraining",
)
