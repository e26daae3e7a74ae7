"""What earlier releases of transformers did otherwise (configs/transformers_history.json).

Three things change memory from release to release and are known here, as each release's own source
says them: whether a model's attention could run PyTorch's scaled_dot_product_attention (SDPA) yet,
how a causal language model made its loss, and how gradient checkpointing recomputed. The rest of a
model is taken to be as it is today.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from memcalc.files import shipped
from memcalc.files.artifact import decode

Loss = Literal["own", "own-float", "function-shift", "function"]
"""How a loss was made of logits: by the model, shifted in their own type (own) or upcast first
(own-float); or by a function that upcasts logits, then shifts these (function-shift) or the labels
(function)."""
_NUMBERS = re.compile(r"\d+")
_LAST = 1_000_000


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model type through the releases."""

    since: str
    """First release that was read and has it."""
    loss: tuple[tuple[str, Loss], ...] = ()
    """From which release on, and how."""
    sdpa: str | None = None
    """First release whose attention can be SDPA; ``None``: none that was read."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What was read."""

    releases: tuple[str, ...]
    models: dict[str, Model]


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One model type in one release, where that is not as it is today."""

    eager: bool = False
    """Its attention is made of single operators."""
    loss: Loss | None = None
    """``None``: as it is today."""
    reentrant: bool = False
    """Checkpointing runs ``torch.utils.checkpoint`` in its reentrant way."""
    notes: tuple[str, ...] = ()
    """What an answer has to say of it."""


@functools.cache
def history() -> History:
    """All releases that were read."""
    return shipped.read("transformers_history.json", lambda data: decode(History, data))


def number(version: str) -> tuple[int, ...]:
    """A version by which releases are ordered; where the last number is left out, the last one."""
    found = tuple(int(part) for part in _NUMBERS.findall(version)[:3])
    return (*found, _LAST) if len(found) < 3 else found


def of(version: str | None, model_type: str | None) -> Release:
    """A model in a release of transformers; ``None``: in the installed one.

    A release before the first that has the model stands for that one, which the notes say.
    """
    if version is None:
        return Release()
    at = number(version)
    reentrant = at < (5, 0)
    known = history().models.get(model_type or "")
    if known is None:
        said = f"nothing is known of this model in transformers {version}: it is taken as today's"
        return Release(reentrant=reentrant, notes=(said,))
    has = max(at, number(known.since))
    forms = [form for since, form in known.loss if number(since) <= has]
    loss = forms[-1] if forms and forms[-1] != known.loss[-1][1] else None
    eager = known.sdpa is None or has < number(known.sdpa)
    notes = _notes(version, str(model_type), known, eager=eager, loss=loss)
    return Release(eager=eager, loss=loss, reentrant=reentrant, notes=tuple(notes))


_LOSSES = {
    "own": "shifted copies of logits in their own type, and does not upcast them",
    "own-float": "upcasts logits at once, and shifted copies of them",
    "function-shift": "upcasts logits, and shifted copies of them",
    "function": "upcasts logits, and shifts labels",
}


def _notes(
    version: str, model_type: str, known: Model, *, eager: bool, loss: Loss | None
) -> Iterator[str]:
    read = history().releases
    if number(version)[:2] > number(read[-1])[:2] or number(version) < number(read[0]):
        yield f"transformers {version} is outside what was read, {read[0]} to {read[-1]}"
    elif number(version) < number(known.since):
        yield f"transformers {version} has no {model_type}: it came with {known.since}"
    came = f"; SDPA came to it with {known.sdpa}" if known.sdpa and eager else ""
    way = "eager" if eager else "SDPA"
    yield f"transformers {version}: attention of {model_type} is {way} there{came}"
    if loss is not None:
        yield f"transformers {version}: the loss of {model_type} makes {_LOSSES[loss]}"
    yield (
        f"the rest of the model is the installed transformers' code, not that of {version}; "
        "loop and optimizer are as the plan says. Its own code runs where it is found first: "
        f"pip install --target FOLDER transformers=={version}.*, PYTHONPATH=FOLDER"
    )
