"""What earlier releases of transformers did otherwise (configs/transformers_history.json).

Four things change memory from release to release and are known here, as each release's own source
says them: whether a model's attention could run PyTorch's scaled_dot_product_attention (SDPA) yet,
how a causal language model made its loss, what it kept its cache of past tokens in, and how
gradient checkpointing recomputed. The rest of a model is taken to be as it is today, which
``spread`` allows for.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from memcalc.files import shipped
from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from memcalc.version import installed

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
    cache: str | None = None
    """First release that keeps past tokens in an object, which grows layer by layer (a ``Cache``);
    ``None``: none that was read."""


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
    tuples: bool = False
    """Past keys and values are tuples: each pass makes them anew beside the old ones."""
    reentrant: bool = False
    """Checkpointing runs ``torch.utils.checkpoint`` in its reentrant way."""
    notes: tuple[str, ...] = ()
    """What an answer has to say of it."""


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """One published reading of a release, and what today's code says with that release named.

    Bytes that PyTorch's allocator had in use at most.
    """

    source: str
    """Name of its file in ``evidence/published``."""
    transformers: str
    plan: str
    published: int
    said: int
    fixed: int
    """Weights, gradients and optimizer states in what is said: no code of a model changes these."""

    @property
    def share(self) -> float:
        """What was read beside what was said, in what is not fixed of the latter."""
        return (self.published - self.said) / (self.said - self.fixed)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How far readings of other releases lay from what is said of them, of what is not fixed."""

    least: float
    most: float
    source: str

    def ends(self, held: int, fixed: int) -> tuple[int, int]:
        """Bytes to add to what is said, at the least and at the most.

        Args:
            held: bytes said.
            fixed: those of weights, gradients and optimizer states.
        """
        free = max(held - fixed, 0)
        return math.floor(self.least * free), math.ceil(self.most * free)


_COUNTS = 0.2
"""Share of what is not fixed that a reading needs to say something of it."""


def runs(version: str) -> bool:
    """The installed transformers is of this release."""
    return f"{installed('transformers') or ''}.".startswith(f"{version}.")


@functools.cache
def spread() -> Spread:
    """Of the readings that were judged so (configs/transformers_apart.json)."""
    known = shipped.read(
        "transformers_apart.json", lambda data: decode(tuple[Apart, ...], data["readings"])
    )
    counted = [one for one in known if one.said - one.fixed >= _COUNTS * one.said]
    releases = sorted({one.transformers for one in counted}, key=number)
    models = len({one.source for one in counted})
    source = (
        f"{len(counted)} published readings of {models} models with transformers "
        f"{', '.join(releases)}: as far as any lay from today's code"
    )
    shares = [one.share for one in counted]
    return Spread(least=min([*shares, 0.0]), most=max([*shares, 0.0]), source=source)


def spread_of(plan: Plan) -> Spread | None:
    """The same where a plan names a release that does not run; ``None``: nothing is allowed for.

    All readings are of training: what a model takes that only runs is mostly weights and its cache.
    """
    version = plan.transformers
    return None if version is None or plan.infers or runs(version) else spread()


@functools.cache
def history() -> History:
    """All releases that were read."""
    return shipped.read("transformers_history.json", lambda data: decode(History, data))


def number(version: str) -> tuple[int, ...]:
    """A version by which releases are ordered; where the last number is left out, the last one."""
    found = tuple(int(part) for part in _NUMBERS.findall(version)[:3])
    return (*found, _LAST) if len(found) < 3 else found


def of(version: str | None, model_type: str | None, *, generates: bool = True) -> Release:
    """A model in a release of transformers; ``None``: in the installed one.

    A release before the first that has the model stands for that one, which the notes say. What
    keeps past tokens matters where it ``generates``.
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
    tuples = generates and known.cache is not None and has < number(known.cache)
    notes = _notes(version, str(model_type), known, eager=eager, loss=loss, tuples=tuples)
    return Release(eager=eager, loss=loss, tuples=tuples, reentrant=reentrant, notes=tuple(notes))


_LOSSES = {
    "own": "shifted copies of logits in their own type, and does not upcast them",
    "own-float": "upcasts logits at once, and shifted copies of them",
    "function-shift": "upcasts logits, and shifted copies of them",
    "function": "upcasts logits, and shifts labels",
}


def _notes(
    version: str, model_type: str, known: Model, *, eager: bool, loss: Loss | None, tuples: bool
) -> Iterator[str]:
    read = history().releases
    if number(version)[:2] > number(read[-1])[:2] or number(version) < number(read[0]):
        yield f"transformers {version} is outside what was read, {read[0]} to {read[-1]}"
    elif number(version) < number(known.since):
        yield f"transformers {version} has no {model_type}: it came with {known.since}"
    came = f"; SDPA came to it with {known.sdpa}" if known.sdpa and eager else ""
    way = "eager" if eager else "SDPA"
    yield f"transformers {version}: attention of {model_type} is {way} there{came}"
    if tuples:
        yield (
            f"transformers {version}: the cache of {model_type} is tuples there, which each token "
            f"makes anew beside the old ones; a Cache came to it with {known.cache}"
        )
    if loss is not None:
        yield f"transformers {version}: the loss of {model_type} makes {_LOSSES[loss]}"
    yield (
        f"the rest of the model is the installed transformers' code, not that of {version}; "
        "loop and optimizer are as the plan says. Its own code runs where it is found first: "
        f"pip install --target FOLDER transformers=={version}.*, PYTHONPATH=FOLDER"
    )
