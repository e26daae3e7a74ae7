"""What a model is trained for, and the class with the head for it."""

from __future__ import annotations

import msgspec

from memcalc.catalog import architectures
from memcalc.catalog.models import ModelSource
from memcalc.errors import UsageError, unknown

TASKS = (
    "sequence-classification",
    "token-classification",
    "question-answering",
    "masked-lm",
    "causal-lm",
    "seq2seq-lm",
    "image-classification",
    "speech-seq2seq",
    "ctc",
    "audio-classification",
    "contrastive",
    "pretraining",
    "base",
)
_AUTO = (
    # The first task that an architecture has a head for decides, so the order matters: BERT also
    # has a causal head, Whisper also a classifier.
    ("speech-seq2seq", "speech-seq2seq"),
    ("seq2seq-lm", "seq2seq-lm"),
    ("contrastive", "contrastive"),
    ("masked-lm", "sequence-classification"),
    ("causal-lm", "causal-lm"),
    ("image-classification", "image-classification"),
    ("ctc", "ctc"),
    ("audio-classification", "audio-classification"),
    ("sequence-classification", "sequence-classification"),
    ("base", "base"),
)
NUM_LABELS = 2


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task and the class that has its head."""

    name: str
    class_name: str
    """Class of transformers; empty for a callable."""
    config_class: str = ""
    num_labels: int | None = None


def choose(source: ModelSource, wanted: str) -> Task:
    """Choose the head: the one asked for, or by architecture.

    Raises:
        UsageError: an unknown task, or one the architecture has no head for.
    """
    if wanted != "auto" and wanted not in TASKS:
        raise unknown("task", wanted, TASKS, hint=f"choose one of {', '.join(TASKS)}.")
    if source.factory is not None:
        return Task(name="callable", class_name="")
    heads = architectures.heads(source.model_type)
    name = wanted if wanted != "auto" else _automatic(heads)
    if name not in heads:
        raise UsageError(
            f"{source.name} ({source.model_type}) has no head for {name}: choose one of "
            f"{', '.join(task for task in TASKS if task in heads)}."
        )
    labels = NUM_LABELS if name in ("sequence-classification", "token-classification") else None
    return Task(
        name=name,
        class_name=heads[name],
        config_class=architectures.table()[source.model_type]["config"],
        num_labels=labels,
    )


def _automatic(heads: dict[str, str]) -> str:
    for present, task in _AUTO:
        if present in heads and task in heads:
            return task
    return "base"
