"""The training child: one run of a plan, reporting each phase as it ends.

A request is the fields of ``Request``, answered by ``{"measurement": ...}``. Events are
``{"phase": reading}`` and, where the run waits to be looked at, ``{"moment": name, "facts": ...,
"pid": ...}``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

from memcalc.children.child import Breadcrumbs, Speaker
from memcalc.files.artifact import decode, encode
from memcalc.measure.runs.run import Listener, Options, measure
from memcalc.records.measurement import PhaseReading
from memcalc.records.plan import Plan
from memcalc.workload.model import in_its_words

_MAKE_IT_ASK = ("torchao", "flash_attn", "flash_attn_interface")
"""Packages for which transformers (5.23) asks CUDA, or imports what does, as it is imported."""


def warm(architecture: str) -> None:
    """Import what runs have in common, but nothing that asks CUDA: a fork could not use it then.

    bitsandbytes asks at once; transformers does where it finds others.
    """
    if architecture and not any(map(importlib.util.find_spec, _MAKE_IT_ASK)):
        import transformers

        _ = transformers.PreTrainedModel


def answer_for(breadcrumbs: Breadcrumbs) -> Callable[[dict[str, Any], Speaker], dict[str, Any]]:
    """A function that answers requests."""
    return _answer


def _answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    plan, options = decode(Plan, request["plan"]), decode(Options, request)
    listener = _Listener(speaker)
    with in_its_words(plan.model, lambda: listener.place):
        return {"measurement": encode(measure(plan, options, listener))}


class _Listener(Listener):
    """Passes on how the run goes."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self.place = ""
        """Where the run is, as far as it is known."""

    def said(self, reading: PhaseReading) -> None:
        """A phase has ended."""
        self.place = f" after {reading.phase.value} of step {reading.step + 1}"
        self._speaker.tell(phase=encode(reading))

    def moment(self, name: str, facts: dict[str, Any]) -> None:
        """Wait until the asker has read what it wants to read."""
        self._speaker.wait(moment=name, facts=facts, pid=os.getpid())
