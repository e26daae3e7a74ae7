"""Language models that foretell the next token."""

from memcalc.workload.tasks import Task

TASK = Task(
    name="causal-lm",
    heads="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    seeing=("qwen2_5_vl", "qwen2_vl"),
    suffix="ForCausalLM",
    chosen=((50, "causal-lm"),),
    of_text=True,
    packed=True,
    vocabulary=True,
    loss_in_pieces=True,
)
