"""Encoders with decoders: translation and summaries."""

from memcalc.workload.tasks import Task

TASK = Task(
    name="seq2seq-lm",
    heads="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    suffix="ForSeq2SeqLM",
    chosen=((20, "seq2seq-lm"),),
    of_text=True,
)
