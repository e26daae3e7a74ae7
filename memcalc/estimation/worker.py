"""Answers a question by a run over the stub driver, in a fork of its own.

What a run changes in PyTorch, in packages or on the simulated GPU is gone with the fork, so that
the second answer is that of a fresh process.
"""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.children.child import Speaker
from memcalc.engine import driver, ranks, replay, run, simulated_gpu
from memcalc.engine import program as programs
from memcalc.engine import torch_internals as internals
from memcalc.engine.alloc_conf import without_fraction
from memcalc.engine.cudnn import loading
from memcalc.engine.cudnn.library import Library, Missing
from memcalc.engine.packages import bitsandbytes, stand_ins
from memcalc.errors import UsageError
from memcalc.estimation.described import state_for
from memcalc.estimation.engine import JOB, RUN, Judged
from memcalc.estimation.fits import Device
from memcalc.estimation.predict import predict
from memcalc.estimation.processes import of_processes
from memcalc.estimation.question import ASSUMED, Asked, asked
from memcalc.estimation.replays import Replays, judged, outcome, room_of
from memcalc.estimation.serving.answer import Model, ServingEngine, predicted
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
from memcalc.workload.model import report_by_name

_OUT_OF_MEMORY = "OutOfMemoryError"
"""PyTorch's own, by its name."""
_OF_CUDNN = ("convolution", "_convolution", "_thnn", "lstm", "gru", "rnn")
"""How the names of such operators begin where PyTorch's own kernels run."""
_ROOMY = 80 * GIB
"""Bytes of the card that a generation runs on where no GPU is named."""
_OF_TRANSFORMERS = ("masking_utils", "modeling_layers", "models.auto.modeling_auto")
"""What every model of transformers imports."""


def warm(architecture: str = "", *modules: str) -> None:
    """Import what runs of an architecture have in common; of a callable, nothing is known."""
    for name in (*_OF_TRANSFORMERS, f"models.{architecture}.modeling_{architecture}"):
        if architecture:
            with contextlib.suppress(ImportError):
                importlib.import_module(f"transformers.{name}")
    if modules:
        with simulated_gpu.asked_without_cuda(ASSUMED):
            bitsandbytes.load(modules)


class AskAgainError(Exception):
    """The request has to be asked again in another fork, with more in it."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.more = more


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Answer a request; ``{"again": more}``: it has to be asked again, with more in it.

    Raises:
        MemcalcError: it cannot be answered.
    """
    internals.use_one_thread()
    # Code that asks for the GPU as it is imported finds the one that this process started with.
    internals.allow_cuda_after_fork()
    plan = decode(Plan, request["plan"])
    try:
        if plan.engine is not None:
            if request.get("keep"):
                raise UsageError("Only memcalc estimate answers for an engine: leave out engine.")
            return {"prediction": encode(_served(plan, speaker))}
        if request.get("inventory"):
            source = models.find(plan.model)
            return {"inventory": encode(whole(source, tasks.choose(source, plan.task), plan))}
        simulated = SimulatedRun(asked(plan), speaker, request)
        if "rank" in request:
            return {"trace": pack(simulated.trace(request["rank"]))}
        return _said_of_ranks(simulated, request, _player(speaker))
    except AskAgainError as error:
        return {"again": error.more}
    except simulated_gpu.AnotherGpuError:
        if request.get("alone"):
            raise
        return {"again": {"alone": True}}


def _player(speaker: Speaker) -> Play:
    return replay.through(lambda calls: speaker.server.ask(replay.__name__, replay.NAME, calls))


class SimulatedRun:
    """One run of a plan in this process, which CUDA over the stub driver belongs to then."""

    def __init__(self, question: Asked, speaker: Speaker, request: dict[str, Any]) -> None:
        """Let this process have the GPU, and build the program without memory for its weights.

        ``request``: how it is run; ``room`` is the bytes that allocations may take, ``rank`` the
        only one to run.
        """
        self.question = question
        self._speaker, self._request = speaker, request
        plan = question.plan
        # A cache that grows leaves blocks behind that are too small for it, and nothing but a
        # device that is full makes the allocator give them back: a generation runs on its GPU.
        usual = UNLIMITED if plan.generate is None else _room(question)
        self.room = int(request.get("room", usual))
        if plan.target != "cpu":
            simulated_gpu.insert(question.gpu, question.target, room=self.room)
        if plan.attention == FLASH_ATTN and stand_ins.is_missing("flash_attn"):
            stand_ins.install("flash_attn")
        with simulated_gpu.asked_without_cuda(question.target):
            self.program = programs.build(plan, real_weights=False)
        if plan.target != "cpu":
            simulated_gpu.check_imports(question.target)

    def trace_ranks(self) -> dict[int, Trace]:
        """Run the ranks that are asked about: one of them here.

        Raises:
            MemcalcError: one cannot be run.
        """
        first, *others = ranks.asked(self.program)
        if not others:
            return {first: self.trace(first)}
        return {rank: self._ask_for(rank) for rank in (first, *others)}

    def _ask_for(self, rank: int) -> Trace:
        """Have a rank run in a fork of its own."""
        said = self._speaker.server.ask(JOB, RUN, {**self._request, "rank": rank})
        if "again" in said:
            raise AskAgainError(**said["again"])
        return unpack(decode(bytes, said["trace"]))

    def trace(self, rank: int) -> Trace:
        """Run one rank here."""
        question, crumbs = self.question, self._speaker.breadcrumbs
        plan, request = question.plan, self._request
        keep = bool(request.get("keep"))
        cudnn = self._settle(rank)
        try:
            with report_by_name(plan.model, crumbs.where):
                traced = run.trace(
                    self.program,
                    lengths=request.get("lengths", ()),
                    detailed=keep,
                    # Figures alone do not tell what operators ask for, so none need be named.
                    named=not request.get("figures") and "devices" not in request,
                    counted=keep or bool(request.get("counted")),
                    # A benchmark wants zeros.
                    values=plan.target != "cpu" and os.environ.get("MEMCALC_READS") != "zeros",
                    drop=crumbs.drop,
                )
        except RuntimeError as error:
            ran_out = type(error).__name__ == _OUT_OF_MEMORY
            if not ran_out or plan.generate is None or self.room >= UNLIMITED:
                raise
            # The answer is that of the first device of 2, 4, 8 times the size on which it fits.
            raise AskAgainError(room=2 * max(self.room, GIB)) from None
        notes = [
            *question.notes,
            *stand_ins.said(),
            *traced.assumptions,
            *_said_of_room(question, self.room),
        ]
        missed = traced.uncounted
        if plan.target != "cpu":
            notes += loading.assumptions()
            if isinstance(cudnn, Missing) and (
                any(one.op.startswith(_OF_CUDNN) for one in traced.storages)
            ):
                missed = (*missed, *cudnn.uncounted)
        return replace(traced, assumptions=tuple(dict.fromkeys(notes)), uncounted=missed)

    def _settle(self, rank: int) -> Library | Missing | None:
        """Let PyTorch have the plan's settings; return its cuDNN, or None on the CPU."""
        plan, target = self.question.plan, self.question.target
        spread = layouts.spread(plan)
        if plan.target == "cpu":
            if spread.world > 1:
                ranks.join(rank, spread.world, "fake")
            return None
        cudnn = driver.cudnn(target.capability)
        os.environ.update(loading.environment(cudnn))
        if isinstance(cudnn, Missing):
            loading.switch_off()
        own = without_fraction(plan.alloc_conf)
        if own:
            internals.set_allocator(own)
        programs.configure(plan)
        if spread.layout != layouts.SINGLE:
            ranks.join(rank, spread.world)
        simulated_gpu.check(target)
        return cudnn


_ITSELF = "type --engine vllm --vllm 0.33, which starts vLLM itself (5.8 GB on disk)"
"""What answers for a model whose memory the rules of engines do not tell."""


def _served(plan: Plan, speaker: Speaker) -> Prediction:
    """Return what a serving engine would reserve.

    Raises:
        MemcalcError: it would not start, or its rules are not known for such a model.
    """
    question = asked(plan)
    assert question.gpu is not None
    if (models.find(plan.model).config or {}).get("quantization_config"):
        raise UsageError(
            f"The checkpoint {plan.model} is quantized, which the rules of engines do not follow: "
            f"{_ITSELF}, or leave --engine out."
        )
    generates = SimulatedRun(replace(question, plan=generating(plan)), speaker, {}).program
    serves = ServingEngine(plan, question.gpu, _served_model(generates))
    length = (generates.seq or 0) + (plan.generate or 0)
    # What no engine takes is refused before anything is run.
    serves.check(length)
    probe = SimulatedRun(asked(serves.probe()), speaker, {"keep": True})
    traced = probe.trace(0)
    state = state_for(probe.question, traced)
    prediction = predict(probe.question, traced, state, _player(speaker))
    serving = serves.serving(read(traced, probe.question.plan.batch), length)
    return predicted(prediction, plan, serving, question.gpu)


def _room(question: Asked) -> int:
    """Return the allocator's bytes on the plan's GPU beside the largest context; 80 GiB if none."""
    device = room_of(question)
    if device is None:
        return _ROOMY
    return min(
        device.room(device.context.high), question.settings.allowed(device.capacity) or UNLIMITED
    )


def _said_of_room(question: Asked, room: int) -> Iterator[str]:
    """Say what of reserved memory depends on the size of the device that a generation ran on."""
    size = format_bytes(room)
    if question.plan.generate is not None and question.gpu is None:
        yield f"reserved is from a run on a card of {size} (name yours with --gpu)"
    elif question.plan.generate is not None and room > _room(question):
        yield f"does not fit; reserved is from a run on an imaginary {size} card"


def _said_of_ranks(simulated: SimulatedRun, request: dict[str, Any], play: Play) -> dict[str, Any]:
    """Answer for the ranks that run: for the one that needs most, or for each."""
    question, traces = simulated.question, simulated.trace_ranks()
    over, every = layouts.spread(question.plan), question.plan.rank == "all"
    if len(traces) == 1 and not every:
        return _said(question, next(iter(traces.values())), request, play)
    if "devices" in request or (over.stages == 1 and not every):
        return _said(question, ranks.largest(traces, over.world), request, play)
    told = {rank: _said(question, traced, request, play) for rank, traced in traces.items()}
    return of_processes(told, over)


def _said(question: Asked, traced: Trace, request: dict[str, Any], play: Play) -> dict[str, Any]:
    """Answer for a run: whether it fits some devices, or what it costs."""
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
    """Return what an engine's rules need to know of the model."""
    inputs = program.inputs
    if inputs is not None and inputs.text_only:
        raise UsageError(
            f"{type(program.model).__name__} takes more than text, which the rules of engines do "
            f"not follow: {_ITSELF}, leave --engine out, or write its text_config to a config.json "
            "of its own for the language model alone."
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
