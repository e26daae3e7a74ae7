"""Asks a child process to trace plans; whatever happens to it is one sentence."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from memcalc.catalog import models
from memcalc.children import inductor
from memcalc.children.ask import Child, Parent
from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.fits import Device
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, Prediction
from memcalc.records.trace import Trace


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one run fits each of some devices."""

    fits: tuple[Fit, ...]
    seq: int | None
    """Tokens per sample that were settled on; ``None``: the model takes no tokens."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of one run in bytes, and whether it fits a device."""

    requested: int
    allocated: int
    reserved: int
    fit: Fit | None = None


ENGINE = "-engine"
"""The kind of process that has opened the stub driver."""
_ENVIRONMENT = {
    # Whoever asks for a GPU while packages are imported asks NVML, and not CUDA.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def tracing_parent() -> Parent:
    """A parent for clients to share; its process starts when the first child is asked for."""
    environment = {**os.environ, **_ENVIRONMENT, **inductor.elsewhere()}
    return Parent(EstimateError, environment, kind=ENGINE)


def trace_all(
    plans: Iterable[Plan], parent: Parent | None = None
) -> Iterator[Prediction | MemcalcError]:
    """Trace plans in one child process, in order; yields each answer as it comes."""
    with Client(parent) as client:
        for plan in plans:
            yield client.ask(plan)


class Client:
    """A child process that traces one plan after the other; started when it is first asked.

    A crash takes one plan with it: the next one is asked of a fresh child.
    """

    def __init__(self, parent: Parent | None = None) -> None:
        """Ask nothing yet.

        Args:
            parent: forks the child; ``None``: one of the client's own.
        """
        self._own = parent is None
        self._parent = parent or tracing_parent()
        self._child: Child | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._parent.close()
        elif self._child is not None:
            self._child.end()

    def abandon(self) -> None:
        """End it for good: a thread that waits for its answer hears of it."""
        self._parent.close()

    def ask(self, plan: Plan) -> Prediction | MemcalcError:
        """Trace one plan."""
        answer = self._answer(plan)
        if isinstance(answer, MemcalcError):
            return answer
        prediction: Prediction = decode(Prediction, answer["prediction"])
        return prediction

    def trace(self, plan: Plan) -> tuple[Prediction, Trace] | MemcalcError:
        """Trace one plan, and keep the events."""
        answer = self._answer(plan, keep=True)
        if isinstance(answer, MemcalcError):
            return answer
        trace = _unpacked(answer)
        if isinstance(trace, MemcalcError):
            return trace
        return decode(Prediction, answer["prediction"]), trace

    def bare(self, plan: Plan) -> Trace | MemcalcError:
        """Trace one plan, for its events alone."""
        answer = self._answer(plan, bare=True)
        return answer if isinstance(answer, MemcalcError) else _unpacked(answer)

    def judged(self, plan: Plan, devices: Sequence[Device]) -> Judged | MemcalcError:
        """Run one plan, and see which of these devices it fits."""
        answer = self._answer(plan, devices=[encode(device) for device in devices])
        return answer if isinstance(answer, MemcalcError) else decode(Judged, answer["judged"])

    def lengths(
        self, plan: Plan, lengths: Sequence[int], device: Device | None
    ) -> Reached | MemcalcError:
        """Train one plan on batches of these lengths, one a step."""
        told = encode(device) if device is not None else None
        answer = self._answer(plan, lengths=list(lengths), device=told)
        return answer if isinstance(answer, MemcalcError) else decode(Reached, answer["reached"])

    def inventory(self, plan: Plan) -> Inventory | MemcalcError:
        """The tensors of a plan's model, and of its adapters where it has some."""
        answer = self._answer(plan, inventory=True)
        if isinstance(answer, MemcalcError):
            return answer
        inventory: Inventory = decode(Inventory, answer["inventory"])
        return inventory

    def _answer(self, plan: Plan, **more: Any) -> dict[str, Any] | MemcalcError:
        try:
            if self._child is None or not self._child.alive:
                self._child = self._parent.child(
                    "memcalc.estimation.child",
                    "simulated run",
                    hint=models.find(plan.model).model_type,
                )
            return self._child.ask({"plan": encode(plan), **more})
        except MemcalcError as error:
            return error


def _unpacked(answer: dict[str, Any]) -> Trace | EstimateError:
    try:
        return unpack(base64.b64decode(answer["trace"]))
    except DamagedTraceError as error:
        return EstimateError(f"What the simulated run said cannot be read: {error}.")
