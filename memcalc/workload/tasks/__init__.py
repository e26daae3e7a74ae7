"""What a model is trained for: one file a task, which says its head and what its batches hold.

Nothing here imports torch, so that the command line can choose a head without it. A file in this
folder is a task; its class for each architecture is in configs/architectures.json, which
``scripts/make_architectures.py`` writes from what the files say.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from memcalc.catalog import architectures
from memcalc.catalog.models import ModelSource
from memcalc.errors import UsageError, unknown


class Shapes(Protocol):
    """Makes the tensors of labels for one batch: B samples of S tokens."""

    seq: Any

    def classes(self) -> Any:
        """(B,) class numbers."""
        ...

    def tokens(self, length: Any) -> Any:
        """(B, length) token numbers."""
        ...


def token_labels(shapes: Shapes) -> dict[str, Any]:
    """One label for each token."""
    return {"labels": shapes.tokens(shapes.seq)}


def class_labels(shapes: Shapes) -> dict[str, Any]:
    """One class for each sample."""
    return {"labels": shapes.classes()}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What training a model for something means."""

    name: str
    heads: str = ""
    """Name of transformers' table of classes with this head (``auto/modeling_auto.py``)."""
    suffix: str = ""
    """What names of classes with this head end in."""
    chosen: tuple[tuple[int, str], ...] = ()
    """Where nobody names a task: the head that speaks for this one, by rank; of all tasks' heads
    that an architecture has, the lowest rank decides."""
    named: bool = False
    """A config that names this head's class is of this task, though it has others: a head for text
    alone leaves out what sees."""
    num_labels: int | None = None
    labels: Callable[[Shapes], dict[str, Any]] = token_labels
    """Labels of one batch, for models whose forward takes ``labels``."""
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


CALLABLE = Task(name="callable")
"""Whatever a model of the user's own is trained for."""


def find(name: str) -> Task:
    """The task of this name.

    Raises:
        UsageError: there is none.
    """
    if name == CALLABLE.name:
        return CALLABLE
    if name not in names():
        raise unknown("task", name, names(), hint=f"choose one of {', '.join(names())}.")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    task: Task = module.TASK
    return task


@functools.cache
def names() -> tuple[str, ...]:
    """All tasks, by the names of their files."""
    return tuple(sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)))


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
    tasks = (find(name) for name, head in heads.items() if head in classes)
    return next((task for task in tasks if task.named), None)


def _automatic(heads: dict[str, str]) -> Task:
    """The first task whose head speaks for an architecture: BERT also has a causal head."""
    for _, speaks, task in _ranked():
        if speaks in heads and task.name in heads:
            return task
    return find("base")


@functools.cache
def _ranked() -> tuple[tuple[int, str, Task], ...]:
    every = [(rank, head, task) for task in map(find, names()) for rank, head in task.chosen]
    return tuple(sorted(every, key=lambda entry: entry[0]))
