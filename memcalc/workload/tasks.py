"""Tasks: each one's model head and batch contents.

Nothing here imports torch, so that the command line can choose a head without it. The class that an
architecture has for a task is in configs/architectures.json, which
``scripts/make_architectures.py`` writes from these rows.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from memcalc.catalog import architectures
from memcalc.catalog.models import ModelSource
from memcalc.errors import UsageError, unknown


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What training a model for something means."""

    name: str
    heads: str = ""
    """Name of transformers' table of classes with this head (``auto/modeling_auto.py``)."""
    seeing: tuple[str, ...] = ()
    """Model types that have the head for images and text, and are trained on text alone with it."""
    suffix: str = ""
    """What names of classes with this head end in."""
    chosen: tuple[tuple[int, str], ...] = ()
    """Where no task is named: the head that speaks for this one, by rank; of all tasks' heads
    that an architecture has, the lowest rank decides."""
    named: bool = False
    """A config that names this head's class is of this task, though it has others: a head for text
    alone leaves out what sees."""
    num_labels: int | None = None
    labels: tuple[str, ...] = ("labels",)
    """Names of the labels of one batch, for models whose forward takes ``labels``."""
    labelled: int | None = None
    """Labels of each sample: 0: one class; ``None``: one for each of its tokens."""
    always_labelled: bool = False
    """The labels have names of their own, whatever the forward calls ``labels``."""
    of_text: bool = False
    """A model that also takes images or sound is trained on text without them."""
    of_sound: bool = False
    """Language models that hear put the sound among their tokens, and have a label for each."""
    packed: bool = False
    """Batches are packed by default: no padding and no attention mask."""
    vocabulary: bool = False
    """The head scores the whole vocabulary at every token."""
    in_batch: bool = False
    """The loss compares the samples of a batch: that of its pieces is another."""
    loss_in_pieces: bool = False
    """The loss can be made piece by piece (``workload/chunked.py``)."""
    by_last_token: bool = False
    """Heads on decoders look for the last token that is not padding, so there must be a padding
    token."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The class that one architecture has for a task."""

    task: Task
    class_name: str
    """Class of transformers; empty for a callable."""
    config_class: str = ""

    @property
    def name(self) -> str:
        """Of the task."""
        return self.task.name


_TASKS = (
    # A class for each recording.
    Task(
        name="audio-classification",
        heads="MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
        suffix="ForAudioClassification",
        chosen=((80, "audio-classification"),),
        labelled=0,
    ),
    # The bare model, trained on the mean of its first output.
    Task(name="base", heads="MODEL_MAPPING_NAMES", chosen=((100, "base"),)),
    # Language models that foretell the next token.
    Task(
        name="causal-lm",
        heads="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        seeing=("qwen2_5_vl", "qwen2_vl"),
        suffix="ForCausalLM",
        chosen=((50, "causal-lm"),),
        of_text=True,
        packed=True,
        vocabulary=True,
        loss_in_pieces=True,
    ),
    # Texts and images side by side, as CLIP.
    Task(
        name="contrastive",
        heads="MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        chosen=((30, "contrastive"),),
        in_batch=True,
    ),
    # Speech to text by connectionist temporal classification.
    Task(
        name="ctc",
        heads="MODEL_FOR_CTC_MAPPING_NAMES",
        suffix="ForCTC",
        chosen=((70, "ctc"),),
        labelled=32,
    ),
    # A class for each image.
    Task(
        name="image-classification",
        heads="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        suffix="ForImageClassification",
        chosen=((60, "image-classification"),),
        labelled=0,
    ),
    # Language models that see, trained whole on batches of text. Some have a head for text alone.
    Task(
        name="image-text-to-text",
        heads="MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
        suffix="ForConditionalGeneration",
        chosen=((95, "image-text-to-text"),),
        named=True,
        of_text=True,
        packed=True,
        vocabulary=True,
    ),
    # Language models that fill in what is masked.
    Task(
        name="masked-lm",
        heads="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        suffix="ForMaskedLM",
        of_text=True,
        vocabulary=True,
    ),
    # What an architecture was first trained for.
    Task(
        name="pretraining",
        heads="MODEL_FOR_PRETRAINING_MAPPING_NAMES",
        suffix="ForPreTraining",
    ),
    # Where in the text an answer begins and ends.
    Task(
        name="question-answering",
        heads="MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        suffix="ForQuestionAnswering",
        labels=("start_positions", "end_positions"),
        labelled=0,
        always_labelled=True,
        of_text=True,
    ),
    # Encoders with decoders: translation and summaries.
    Task(
        name="seq2seq-lm",
        heads="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        suffix="ForSeq2SeqLM",
        chosen=((20, "seq2seq-lm"),),
        of_text=True,
    ),
    # A class for each text; what encoders of text are most often trained for.
    Task(
        name="sequence-classification",
        heads="MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        suffix="ForSequenceClassification",
        # Whatever fills in masked tokens is an encoder.
        chosen=((40, "masked-lm"), (90, "sequence-classification")),
        num_labels=2,
        labelled=0,
        of_text=True,
        by_last_token=True,
    ),
    # Speech to text by an encoder with a decoder, as Whisper.
    Task(
        name="speech-seq2seq",
        heads="MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        suffix="ForSpeechSeq2Seq",
        # Whisper also has a classifier.
        chosen=((10, "speech-seq2seq"),),
        labelled=128,
        of_sound=True,
    ),
    # A class for each token.
    Task(
        name="token-classification",
        heads="MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        suffix="ForTokenClassification",
        num_labels=2,
        of_text=True,
    ),
)
CALLABLE = Task(name="callable")
"""Whatever a model of the user's own is trained for."""
_BY_NAME = {task.name: task for task in _TASKS}


def find(name: str) -> Task:
    """The task of this name.

    Raises:
        UsageError: there is none.
    """
    if name == CALLABLE.name:
        return CALLABLE
    if name not in names():
        raise unknown("task", name, names(), hint=f"choose one of {', '.join(names())}.")
    return _BY_NAME[name]


def names() -> tuple[str, ...]:
    """All tasks."""
    return tuple(_BY_NAME)


def choose(source: ModelSource, wanted: str) -> Head:
    """Choose the head: the one asked for, or by architecture.

    Raises:
        UsageError: an unknown task, or one the architecture has no head for.
    """
    task = find(wanted) if wanted != "auto" else None
    if source.factory is not None:
        if task is not None:
            raise UsageError(f"{source.name} makes its model with its head: leave out --task.")
        return Head(task=CALLABLE, class_name="")
    heads = architectures.heads(source.model_type)
    task = task or _named(source.config, heads) or _automatic(heads)
    if task.name not in heads:
        raise UsageError(
            f"{source.name} ({source.model_type}) has no head for {task.name}: choose one of "
            f"{', '.join(name for name in names() if name in heads)}."
        )
    return Head(
        task=task,
        class_name=heads[task.name],
        config_class=architectures.table()[source.model_type]["config"],
    )


def _named(config: Mapping[str, Any] | None, heads: dict[str, str]) -> Task | None:
    """The task whose head a config names as its architecture, where that decides."""
    wanted = (config or {}).get("architectures")
    classes = wanted if isinstance(wanted, list) else []
    whole = heads.get("causal-lm")
    tasks = (find(name) for name, head in heads.items() if head in classes and head != whole)
    return next((task for task in tasks if task.named), None)


def _automatic(heads: dict[str, str]) -> Task:
    """The first task whose head speaks for an architecture: BERT also has a causal head."""
    every = ((rank, head, task) for task in _TASKS for rank, head in task.chosen)
    for _, speaks, task in sorted(every, key=lambda entry: entry[0]):
        if speaks in heads and task.name in heads:
            return task
    return find("base")
