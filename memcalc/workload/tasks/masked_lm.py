"""Language models that fill in what is masked."""

from memcalc.workload.tasks import Task

TASK = Task(
    name="masked-lm",
    heads="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    suffix="ForMaskedLM",
    of_text=True,
    vocabulary=True,
)
