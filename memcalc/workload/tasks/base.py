"""The bare model, trained on the mean of its first output."""

from memcalc.workload.tasks import Task

TASK = Task(name="base", heads="MODEL_MAPPING_NAMES", chosen=((100, "base"),))
