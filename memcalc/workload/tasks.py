"""Tasks: each one's model head and batch contents.

Nothing here imports torch, so that the command line can choose a head without it. The class that an
architecture has for a task is in configs/architectures.json, which
``scripts/make_architectures.py`` writes from these rows.
"""

import msgspec

from memcalc.catalog import architectures
from memcalc.catalog.models import ModelSource
from memcalc.errors import UsageError, unknown


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A purpose that models are trained for."""

    name: str
    table: str = ""
    """Name of transformers' table of classes with this head (``auto/modeling_auto.py``), where
    it is not the task's."""
    seeing: tuple[str, ...] = ()
    """Model types that have the head for images and text, and are trained on text alone with it."""
    suffix: str = ""
    """Suffix of the names of classes with this head."""
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

    @property
    def heads(self) -> str:
        """The name of transformers' table of classes with this head."""
        name = self.name.upper().replace("-", "_")
        return self.table or f"MODEL_FOR_{name}_MAPPING_NAMES"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The class that one architecture has for a task."""

    task: Task
    class_name: str
    """Class of transformers; empty for a callable."""
    config_class: str = ""

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task.name


_TASKS = (
    # A class for each recording.
    Task(
        name="audio-classification",
        suffix="ForAudioClassification",
        labelled=0,
    ),
    # The bare model, trained on the mean of its first output.
    Task(name="base", table="MODEL_MAPPING_NAMES"),
    # Language models that foretell the next token.
    Task(
        name="causal-lm",
        seeing=("qwen2_5_vl", "qwen2_vl"),
        suffix="ForCausalLM",
        of_text=True,
        packed=True,
        vocabulary=True,
        loss_in_pieces=True,
    ),
    # Texts and images side by side, as CLIP.
    Task(
        name="contrastive",
        table="MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        in_batch=True,
    ),
    # Speech to text by connectionist temporal classification.
    Task(
        name="ctc",
        suffix="ForCTC",
        labelled=32,
    ),
    # A class for each image.
    Task(
        name="image-classification",
        suffix="ForImageClassification",
        labelled=0,
    ),
    # Language models that see, trained whole on batches of text. Some have a head for text alone.
    Task(
        name="image-text-to-text",
        suffix="ForConditionalGeneration",
        named=True,
        of_text=True,
        packed=True,
        vocabulary=True,
    ),
    # Language models that fill in what is masked.
    Task(
        name="masked-lm",
        suffix="ForMaskedLM",
        of_text=True,
        vocabulary=True,
    ),
    # What an architecture was first trained for.
    Task(
        name="pretraining",
        suffix="ForPreTraining",
    ),
    # Where in the text an answer begins and ends.
    Task(
        name="question-answering",
        suffix="ForQuestionAnswering",
        labels=("start_positions", "end_positions"),
        labelled=0,
        always_labelled=True,
        of_text=True,
    ),
    # Encoders with decoders: translation and summaries.
    Task(
        name="seq2seq-lm",
        table="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        suffix="ForSeq2SeqLM",
        of_text=True,
    ),
    # A class for each text; what encoders of text are most often trained for.
    Task(
        name="sequence-classification",
        suffix="ForSequenceClassification",
        num_labels=2,
        labelled=0,
        of_text=True,
        by_last_token=True,
    ),
    # Speech to text by an encoder with a decoder, as Whisper.
    Task(
        name="speech-seq2seq",
        table="MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        suffix="ForSpeechSeq2Seq",
        labelled=128,
        of_sound=True,
    ),
    # A class for each token.
    Task(
        name="token-classification",
        suffix="ForTokenClassification",
        num_labels=2,
        of_text=True,
    ),
)
CALLABLE = Task(name="callable")
"""Whatever a model of the user's own is trained for."""
_BY_NAME = {task.name: task for task in _TASKS}
_BY_HEAD = {
    # Whisper also has a classifier, BERT a causal head; a head for masked tokens is an encoder's.
    "speech-seq2seq": "speech-seq2seq",
    "seq2seq-lm": "seq2seq-lm",
    "contrastive": "contrastive",
    "masked-lm": "sequence-classification",
    "causal-lm": "causal-lm",
    "image-classification": "image-classification",
    "ctc": "ctc",
    "audio-classification": "audio-classification",
    "sequence-classification": "sequence-classification",
    "image-text-to-text": "image-text-to-text",
    "base": "base",
}
"""The task that is meant where none is named, by the first of these heads that there is."""


def find(name: str) -> Task:
    """Return the task with this name, such as ``causal-lm``.

    Raises:
        UsageError: no task has it.
    """
    if name == CALLABLE.name:
        return CALLABLE
    if name not in names():
        raise unknown("task", name, names(), hint=f"choose one of {', '.join(names())}.")
    return _BY_NAME[name]


def names() -> tuple[str, ...]:
    """Return the names of all tasks."""
    return tuple(_BY_NAME)


def choose(source: ModelSource, wanted: str) -> Head:
    """Return the model class for a task; ``auto``: the task of the model's architecture.

    Raises:
        UsageError: an unknown task, or one the architecture has no head for.
    """
    task = find(wanted) if wanted != "auto" else None
    if source.factory is not None:
        if task is not None:
            raise UsageError(f"{source.name} makes its model with its head: leave out --task.")
        return Head(task=CALLABLE, class_name="")
    heads = architectures.heads(source.model_type)
    if task is None:
        written = (source.config or {}).get("architectures")
        classes = written if isinstance(written, list) else list[str]()
        # A config that names the head of a task decides for some tasks.
        named = [
            find(name)
            for name, head in heads.items()
            if head in classes and head != heads.get("causal-lm")
        ]
        meant = [task for task in named if task.named]
        guessed = (one for head, one in _BY_HEAD.items() if {head, one} <= heads.keys())
        task = meant[0] if meant else find(next(guessed, "base"))
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
