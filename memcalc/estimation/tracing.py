"""What a tracing child does: PyTorch lives here, so that the command line stays light.

``{"plan": ...}`` is answered by ``{"prediction": ...}``, with ``"keep": true`` also by its
``"trace"``, packed; with ``"grow": true`` instead by ``{"growth": ..., "trace": ...}``, and with
``"inventory": true`` by ``{"inventory": ...}``, for which nothing is traced.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.children.child import Speaker
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.predict import predict
from memcalc.estimation.question import Asked, asked
from memcalc.estimation.serving.answer import Engine, Model, predicted
from memcalc.estimation.serving.probe import generating, read
from memcalc.estimation.state import state_for
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import pack
from memcalc.records.model import OptimizerState
from memcalc.records.plan import FLASH_ATTN, Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Trace
from memcalc.registry import Choice
from memcalc.symbolic.records import SymbolicTrace
from memcalc.trace.decoding import TRACED
from memcalc.trace.generalize import generalize
from memcalc.trace.generation import movable
from memcalc.trace.packages import bitsandbytes
from memcalc.trace.run import trace
from memcalc.workload import cache_layers, layouts, tasks
from memcalc.workload.inventory import whole
from memcalc.workload.model import in_its_words
from memcalc.workload.prepare import prepare
from memcalc.workload.program import Program

_OF_TRANSFORMERS = ("masking_utils", "modeling_layers", "models.auto.modeling_auto")
"""What every model of transformers imports."""


def warm(architecture: str) -> None:
    """Import what traces of an architecture have in common; of a callable, nothing is known."""
    if not architecture:
        return
    for name in (*_OF_TRANSFORMERS, f"models.{architecture}.modeling_{architecture}"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"transformers.{name}")


_BETWEEN_COLLECTIONS = 5_000
"""Objects that are made before garbage is looked for.

A trace of a deep model makes a hundred thousand that stay, and Python, which looks after every 700,
would go through them again and again: a tenth of the time. What is left in circles dies a little
later than it would, and a run of a plan leaves next to nothing there.
"""


def answer_for(breadcrumbs: Breadcrumbs) -> Callable[[dict[str, Any], Speaker], dict[str, Any]]:
    """A function that answers requests."""
    gc.set_threshold(_BETWEEN_COLLECTIONS)
    desk = Desk(breadcrumbs)
    return lambda request, speaker: desk.answer(request)


_KEPT = 8
"""Traces that a child keeps for questions about the same run under other allocator settings."""


class Desk:
    """Answers requests, and keeps the last program for the next one that differs in size only."""

    def __init__(self, breadcrumbs: Breadcrumbs | None = None) -> None:
        self._breadcrumbs = breadcrumbs
        self._program: tuple[Plan, Program] | None = None
        self._traces: dict[Plan, tuple[Trace, OptimizerState]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            MemcalcError: it cannot be answered.
        """
        plan = decode(Plan, request["plan"])
        if plan.engine is not None:
            if request.get("keep") or request.get("grow"):
                raise UsageError(
                    "An engine is answered by memcalc estimate alone: leave out engine."
                )
            return {"prediction": encode(self.served(plan))}
        if request.get("inventory"):
            source = models.find(plan.model)
            return {"inventory": encode(whole(source, tasks.choose(source, plan.task), plan))}
        if request.get("grow"):
            growth = self.grow(plan)
            return {"growth": encode(growth.without_events), "trace": pack(growth.trace)}
        if request.get("bare"):
            return {"trace": pack(self.traced(asked(plan))[0])}
        prediction, traced = self.estimate(plan)
        kept = {"trace": pack(traced)} if request.get("keep") else {}
        return {"prediction": encode(prediction), **kept}

    def estimate(self, plan: Plan) -> tuple[Prediction, Trace]:
        """Trace one plan in this process and predict from it."""
        question = asked(plan)
        traced, state = self.traced(question)
        return predict(question, traced, state), traced

    def traced(self, question: Asked) -> tuple[Trace, OptimizerState]:
        """Trace a plan in this process."""
        run = replace(question.plan, alloc_conf="")
        if run not in self._traces:
            known = self._traced(question)
            # The one that was asked for longest ago makes room.
            for old in list(self._traces)[: len(self._traces) - _KEPT + 1]:
                del self._traces[old]
            self._traces[run] = known
        return self._traces[run]

    def served(self, plan: Plan) -> Prediction:
        """What a serving engine would reserve.

        Raises:
            MemcalcError: it would not start, or its rules are not known for such a model.
        """
        question = asked(plan)
        assert question.gpu is not None
        if (models.find(plan.model).config or {}).get("quantization_config"):
            raise UsageError(
                f"The checkpoint {plan.model} is quantised, which engines keep as it is: that is "
                "not answered so far. Leave --engine out."
            )
        program = self._prepared(generating(plan), question.choice)
        engine = Engine(plan, question.gpu, _served_model(program))
        probe = engine.probe()
        length = (program.seq or 0) + (plan.generate or 0)
        # What no engine takes is refused before anything is traced.
        engine.check(length)
        prediction, traced = self.estimate(probe)
        serving = engine.serving(read(traced, probe.batch), length)
        return predicted(prediction, plan, serving, question.gpu)

    def _traced(self, question: Asked) -> tuple[Trace, OptimizerState]:
        plan = question.plan
        program = self._prepared(plan, question.choice)
        with in_its_words(plan.model, self._where):
            traced = trace(
                program, question.target, notes=question.notes, breadcrumbs=self._breadcrumbs
            )
        return traced, state_for(question, traced)

    def grow(self, plan: Plan) -> SymbolicTrace:
        """Learn how the trace of a plan grows.

        Raises:
            EstimateError: it cannot be learnt.
        """
        question = asked(plan)
        if layouts.spread(plan).world > 1:
            raise EstimateError("runs over several GPUs are traced at each size")
        if plan.scheme is not None:
            raise EstimateError("quantised bases choose kernels by size and are traced at each")
        if plan.liger:
            raise EstimateError("Liger cuts its loss by size, and is traced at each")
        if plan.attention == FLASH_ATTN:
            raise EstimateError("flash-attn divides its work by size, and is traced at each")
        program = self._prepared(plan, question.choice)
        if plan.generate is not None:
            if (
                plan.cache.endswith("static")
                or not movable(program)
                or program.decodes_beside_an_encoder
            ):
                raise EstimateError("such a decode is not the same after a longer prompt")
            program = program.later(0, min(plan.generate, TRACED))
        plain = trace(program, question.target, breadcrumbs=self._breadcrumbs)
        return generalize(program, question.target, plain, breadcrumbs=self._breadcrumbs)

    def _where(self) -> str:
        return self._breadcrumbs.where() if self._breadcrumbs is not None else ""

    def _prepared(self, plan: Plan, choice: Choice) -> Program:
        known = self._program
        if known is None or known[0] != plan.program or known[1].inputs is None:
            if plan.adapters or plan.scheme or choice.row.package == bitsandbytes.NAMESPACE:
                # peft and transformers import it as well.
                bitsandbytes.load()
            self._program = known = (plan.program, prepare(plan, choice))
        if known[1].inputs is None:
            return known[1]
        return replace(known[1].resized(plan.batch, plan.seq), plan=plan)


def _served_model(program: Program) -> Model:
    """What an engine's rules ask of the model.

    Raises:
        UsageError: they are not known for it.
    """
    inputs = program.inputs
    return Model(
        name=type(program.model).__name__,
        positions=inputs.lengths.named if inputs is not None else None,
        windows=cache_layers.windows(program.model),
        latent=cache_layers.latent(program.model),
    )
