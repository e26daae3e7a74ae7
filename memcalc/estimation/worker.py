"""Answers questions by runs over the stub driver, each in a copy of this process.

What a run changes in PyTorch, in packages or on the simulated GPU is gone with the copy, so that
the second answer is that of a fresh process. The model is built once for all that differ in size.
"""

import base64
import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.children.child import Breadcrumbs
from memcalc.children.fork import Ask, CodeError, forked
from memcalc.engine import driver, ranks, replay, run, simulated_gpu
from memcalc.engine import program as programs
from memcalc.engine import torch_internals as internals
from memcalc.engine.alloc_conf import without_fraction
from memcalc.engine.cudnn import loading
from memcalc.engine.cudnn.library import Missing
from memcalc.engine.packages import bitsandbytes, stand_ins
from memcalc.errors import UsageError
from memcalc.estimation.client import Judged
from memcalc.estimation.described import state_for
from memcalc.estimation.fits import Device
from memcalc.estimation.predict import predict
from memcalc.estimation.processes import of_processes
from memcalc.estimation.question import Asked, asked
from memcalc.estimation.replays import Replays, judged, outcome, room_of
from memcalc.estimation.serving.answer import Engine, Model, predicted
from memcalc.estimation.serving.probe import generating, read
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import pack, unpack
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.replay import UNLIMITED, Play
from memcalc.records.trace import Trace
from memcalc.units import GIB, format_bytes
from memcalc.workload import cache_layers, layouts, tasks
from memcalc.workload.inventory import whole
from memcalc.workload.job import Program
from memcalc.workload.model import in_its_words

NAME = "simulated run"
_PROGRAMS = 4
"""So many are kept."""
_OUT_OF_MEMORY = "OutOfMemoryError"
"""PyTorch's own, by its name."""
_OF_CUDNN = ("convolution", "_convolution", "_thnn", "lstm", "gru", "rnn")
"""How the names of such operators begin where PyTorch's own kernels run."""
_ROOMY = 80 * GIB
"""Bytes of the card that a generation runs on where no GPU is named."""
_OF_TRANSFORMERS = ("masking_utils", "modeling_layers", "models.auto.modeling_auto")
"""What every model of transformers imports."""


def warm(architecture: str) -> None:
    """Import what runs of an architecture have in common; of a callable, nothing is known."""
    if not architecture:
        return
    for name in (*_OF_TRANSFORMERS, f"models.{architecture}.modeling_{architecture}"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"transformers.{name}")


class Worker:
    """Answers requests, and keeps the last programs for those that differ in size only."""

    def __init__(self, breadcrumbs: Breadcrumbs) -> None:
        internals.prepare_to_fork()
        # Code that asks for the GPU as it is imported finds the one that this process started with.
        internals.allow_cuda_after_fork()
        self._breadcrumbs = breadcrumbs
        self._how: dict[str, Any] = {}
        """How programs are run, as ``run.trace`` is told."""
        self._programs: dict[Plan, Program] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; ``another_gpu``: ask a process that starts with the plan's.

        Raises:
            MemcalcError: it cannot be answered.
        """
        try:
            return self._answer(decode(Plan, request["plan"]), request)
        except simulated_gpu.AnotherGpuError:
            return {"another_gpu": True}

    def _answer(self, plan: Plan, request: dict[str, Any]) -> dict[str, Any]:
        keep = bool(request.get("keep"))
        self._how = {
            "detailed": keep,
            "counted": keep or bool(request.get("counted")),
            # Figures alone do not tell what operators ask for, so that none need be named.
            "named": not request.get("figures") and "devices" not in request,
            "lengths": request.get("lengths", ()),
        }
        if plan.engine is not None:
            if keep:
                raise UsageError("Only memcalc estimate answers for an engine: leave out engine.")
            return {"prediction": encode(self.served(plan))}
        if request.get("inventory"):
            source = models.find(plan.model)
            return {"inventory": encode(whole(source, tasks.choose(source, plan.task), plan))}
        question = asked(plan)
        program = self._prepared(question)
        first, *others = ranks.asked(program)
        over = layouts.spread(plan)
        if others or plan.rank == "all":
            traces = {rank: self._trace(question, program, rank) for rank in (first, *others)}
            if "devices" in request or (plan.rank != "all" and over.stages == 1):
                most = ranks.largest(traces, over.world)
                return _said(question, most, request, replay.play)
            told = {rank: _said(question, traces[rank], request, replay.play) for rank in traces}
            return of_processes(told, over)

        def here(room: int, ask: Ask) -> dict[str, Any]:
            traced = self._run_here(question, program, first, room)
            return _said(question, traced, request, replay.through(ask))

        return self._in_enough_room(question, here)

    def _trace(self, question: Asked, program: Program, rank: int) -> Trace:
        """Run one rank in a copy of this process."""

        def work(room: int, _: Ask) -> dict[str, Any]:
            return {"trace": pack(self._run_here(question, program, rank, room))}

        return unpack(base64.b64decode(self._in_enough_room(question, work)["trace"]))

    def _run_here(self, question: Asked, program: Program, rank: int, room: int) -> Trace:
        """Run in this process, which CUDA over the stub driver belongs to from here on."""
        plan, crumbs = question.plan, self._breadcrumbs
        self._settle(question, rank, room)
        with in_its_words(plan.model, crumbs.where):
            traced = run.trace(program, **self._how, drop=crumbs.drop)
        notes = [
            *question.notes,
            *stand_ins.said(),
            *traced.assumptions,
            *_said_of_room(question, room),
        ]
        missed = traced.uncounted
        if plan.target != "cpu":
            notes += loading.assumptions()
            if isinstance(self._cudnn, Missing) and (
                any(one.op.startswith(_OF_CUDNN) for one in traced.storages)
            ):
                missed = (*missed, *self._cudnn.uncounted)
        return replace(traced, assumptions=tuple(dict.fromkeys(notes)), uncounted=missed)

    def _settle(self, question: Asked, rank: int, room: int = UNLIMITED) -> None:
        """Let this process be one that has the plan's GPU and settings."""
        plan = question.plan
        if plan.target == "cpu":
            if layouts.spread(plan).world > 1:
                ranks.join(rank, layouts.spread(plan).world, "fake")
            return
        simulated_gpu.insert(question.gpu, question.target, room=room)
        self._cudnn = driver.cudnn(question.target.capability)
        os.environ.update(loading.environment(self._cudnn))
        if isinstance(self._cudnn, Missing):
            loading.switch_off()
        own = without_fraction(plan.alloc_conf)
        if own:
            internals.set_allocator(own)
        programs.configure(plan)
        spread = layouts.spread(plan)
        if spread.layout != layouts.SINGLE:
            ranks.join(rank, spread.world)
        simulated_gpu.check(question.target)

    def served(self, plan: Plan) -> Prediction:
        """What a serving engine would reserve.

        Raises:
            MemcalcError: it would not start, or its rules are not known for such a model.
        """
        question = asked(plan)
        assert question.gpu is not None
        if (models.find(plan.model).config or {}).get("quantization_config"):
            raise UsageError(
                f"The checkpoint {plan.model} is quantized, and engines with quantized weights "
                f"are not supported yet. Leave --engine out."
            )
        generates = self._prepared(replace(question, plan=generating(plan)))
        engine = Engine(plan, question.gpu, _served_model(generates))
        probe = asked(engine.probe())
        length = (generates.seq or 0) + (plan.generate or 0)
        # What no engine takes is refused before anything is run.
        engine.check(length)
        self._how["detailed"] = True
        traced = self._trace(probe, self._prepared(probe), 0)
        prediction = predict(probe, traced, state_for(probe, traced), replay.play)
        serving = engine.serving(read(traced, probe.plan.batch), length)
        return predicted(prediction, plan, serving, question.gpu)

    def _in_enough_room(
        self, question: Asked, work: Callable[[int, Ask], dict[str, Any]]
    ) -> dict[str, Any]:
        """Run where nothing is ever full; a generation on its GPU, which has the cache given back.

        A cache that grows leaves blocks behind that are too small for it, and nothing but a device
        that is full makes the allocator give them back. Where a generation does not fit, the answer
        is that of the first device of 2, 4, 8 times the size on which it does.
        """
        if question.plan.generate is None:
            return self._forked(question.plan, functools.partial(work, UNLIMITED))
        room = _room(question)
        while True:
            try:
                return self._forked(question.plan, functools.partial(work, room))
            except CodeError as error:
                if error.kind != _OUT_OF_MEMORY or room >= UNLIMITED:
                    raise
            room = 2 * max(room, GIB)

    def _forked(self, plan: Plan, work: Callable[[Ask], dict[str, Any]]) -> dict[str, Any]:
        """Run in a copy of this process, with values followed unless a benchmark wants zeros."""
        self._how["values"] = plan.target != "cpu" and os.environ.get("MEMCALC_READS") != "zeros"
        return forked(work, NAME, self._breadcrumbs.where, replay.answer)

    def _prepared(self, question: Asked) -> Program:
        """The plan's program, without memory for its weights."""
        plan, key = question.plan, question.plan.program
        known = self._programs.pop(key, None)
        if known is None or known.inputs is None:
            if plan.attention == FLASH_ATTN and stand_ins.is_missing("flash_attn"):
                stand_ins.install("flash_attn")
            with simulated_gpu.asked_without_cuda(question.target):
                bitsandbytes.load(plan)
                known = programs.build(plan, real_weights=False)
        if plan.target != "cpu":
            simulated_gpu.check_imports(question.target)
        # The last ones asked about: the models of two ways to train are asked about in turns.
        self._programs = {**dict(list(self._programs.items())[1 - _PROGRAMS :]), key: known}
        if known.inputs is None:
            return known
        return replace(known.resized(plan.batch, plan.seq), plan=plan)


def _room(question: Asked) -> int:
    """Bytes that the allocator has on the plan's GPU beside the largest context; 80 GiB if none."""
    device = room_of(question)
    if device is None:
        return _ROOMY
    return min(
        device.room(device.context.high), question.settings.allowed(device.capacity) or UNLIMITED
    )


def _said_of_room(question: Asked, room: int) -> Iterator[str]:
    """What of reserved memory depends on the size of the device that a generation ran on."""
    size = format_bytes(room)
    if question.plan.generate is not None and question.gpu is None:
        yield f"reserved is from a run on a card of {size} (name yours with --gpu)"
    elif question.plan.generate is not None and room > _room(question):
        yield f"does not fit; reserved is from a run on an imaginary {size} card"


def _said(question: Asked, traced: Trace, request: dict[str, Any], play: Play) -> dict[str, Any]:
    """Answer what was asked of a run: whether it fits some devices, or what it costs."""
    if "devices" not in request:
        kept = {"trace": pack(traced)} if request.get("keep") else {}
        found = predict(question, traced, state_for(question, traced), play)
        return {"prediction": encode(found), **kept}
    devices = [decode(Device, one) for one in request["devices"]]
    told = Judged(
        peaks=outcome(traced).peaks,
        fits=tuple(judged(question, Replays(traced, play), devices)),
        seq=traced.seq,
        assumptions=traced.assumptions,
        uncounted=traced.uncounted,
    )
    return {"judged": encode(told)}


def _served_model(program: Program) -> Model:
    """What an engine's rules ask of the model."""
    inputs = program.inputs
    if inputs is not None and inputs.text_only:
        raise UsageError(
            f"{type(program.model).__name__} takes more than text, and engines profile that as "
            "well, which is not supported yet. Leave --engine out, or write its text_config to a "
            "config.json of its own for the language model alone."
        )
    config: Any = program.model.config
    text = config.get_text_config()
    return Model(
        name=type(program.model).__name__,
        positions=inputs.lengths.named if inputs is not None else None,
        windows=cache_layers.windows(program.model),
        vocabulary=text.vocab_size,
        width=text.hidden_size,
        latent=cache_layers.latent(program.model),
    )
