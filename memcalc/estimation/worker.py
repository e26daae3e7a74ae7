"""Answers a question by a run over the stub driver, in a new fork.

Changes that a run makes in PyTorch, in packages or on the simulated GPU end with the fork, so
earlier runs do not change an answer.
"""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from memcalc.children.child import Speaker
from memcalc.engine import driver, ranks, replay, run, simulated_gpu
from memcalc.engine import program as programs
from memcalc.engine import torch_internals as internals
from memcalc.engine.alloc_conf import without_fraction
from memcalc.engine.cudnn import loading
from memcalc.engine.cudnn.library import Library, Missing
from memcalc.engine.packages import bitsandbytes, stand_ins
from memcalc.engine.values import follower
from memcalc.errors import UsageError
from memcalc.estimation.base_prediction import state_for
from memcalc.estimation.engine import JOB, RUN
from memcalc.estimation.predict import predict, predict_by_replay
from memcalc.estimation.processes import combine_ranks
from memcalc.estimation.question import ASSUMED, ResolvedPlan, look_up
from memcalc.estimation.replays import Replays, find_device
from memcalc.estimation.serving.probe import generating, read
from memcalc.estimation.serving.rules import Model, ServingEngine, make_prediction
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import pack, unpack
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.replay import UNLIMITED, Play
from memcalc.records.trace import Trace
from memcalc.units import GIB, format_bytes
from memcalc.workload import cache_layers, layouts
from memcalc.workload.inventory import whole
from memcalc.workload.job import Program
from memcalc.workload.model import report_by_name

_OUT_OF_MEMORY = "OutOfMemoryError"
"""Name of PyTorch's error class."""
_CUDNN_PREFIXES = ("convolution", "_convolution", "_thnn", "lstm", "gru", "rnn")
"""Prefixes of operators that cuDNN computes; without cuDNN, PyTorch's own kernels run."""
_DEFAULT_CARD = 80 * GIB
"""Bytes of the card that a generation runs on if no GPU is named."""
_TRANSFORMERS_MODULES = ("masking_utils", "modeling_layers", "models.auto.modeling_auto")
"""Modules that every model of transformers imports."""


def warm(architecture: str = "", *modules: str) -> None:
    """Import the modules that runs of an architecture have in common, and those named."""
    with simulated_gpu.answer_without_cuda(ASSUMED):
        for name in (*_TRANSFORMERS_MODULES, f"models.{architecture}.modeling_{architecture}"):
            if architecture:
                with contextlib.suppress(ImportError):
                    importlib.import_module(f"transformers.{name}")
        if modules:
            bitsandbytes.load(modules)
    # All read what follows: a fork has it from here.
    look_up(Plan(model="gpt2", gpu="t4"))
    follower.prepare()


class RetryRequestError(Exception):
    """A request that must be asked again in another fork, with the fields in ``more`` added."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.more = more


def answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    """Answer a request in this fork: a prediction, a trace, an inventory, or ``{"again": more}``.

    Raises:
        MemcalcError: it cannot be answered.
    """
    internals.use_one_thread()
    # Imports that ask for the GPU find the one that this process started with.
    internals.allow_cuda_after_fork()
    plan = decode(Plan, request["plan"])
    try:
        if plan.engine is not None:
            if request.get("keep"):
                raise UsageError("Only memcalc estimate answers for an engine: leave out engine.")
            return {"prediction": encode(_predict_serving(plan, speaker))}
        if request.get("inventory"):
            question = look_up(plan)
            return {"inventory": encode(whole(question.source, question.head, plan))}
        simulated = SimulatedRun(look_up(plan, request.get("memory")), speaker, request)
        if "rank" in request:
            return {"trace": pack(simulated.trace(request["rank"]))}
        return _answer_ranks(simulated, request, _make_player(speaker))
    except RetryRequestError as error:
        return {"again": error.more}
    except simulated_gpu.AnotherGpuError:
        if request.get("alone"):
            raise
        return {"again": {"alone": True}}


def _make_player(speaker: Speaker) -> Play:
    return replay.make_player(lambda calls: speaker.server.ask(replay.__name__, replay.NAME, calls))


class SimulatedRun:
    """A run of a plan in this process, with CUDA over the stub driver."""

    def __init__(self, question: ResolvedPlan, speaker: Speaker, request: dict[str, Any]) -> None:
        """Insert the simulated GPU, and build the program without memory for its weights.

        ``request``: the settings of the run; ``room`` is the bytes that allocations may take,
        ``rank`` the only one to run.
        """
        self.question = question
        self._speaker, self._request = speaker, request
        plan = question.plan
        # A growing cache leaves blocks behind that are too small for it. Only a full device makes
        # the allocator free them: a generation runs at its GPU's size.
        usual = UNLIMITED if plan.generate is None else _allocator_room(question)
        self.room = int(request.get("room", usual))
        if plan.target != "cpu":
            simulated_gpu.insert(question.gpu, question.target, room=self.room)
        if plan.attention == FLASH_ATTN and stand_ins.is_missing("flash_attn"):
            stand_ins.install("flash_attn")
        with simulated_gpu.answer_without_cuda(question.target):
            self.program = programs.build(plan, real_weights=False)
        if plan.target != "cpu":
            simulated_gpu.check_imports(question.target)

    def trace_ranks(self) -> dict[int, Trace]:
        """Return the traces of the ranks that the plan asks about, by rank; several run in forks.

        Raises:
            MemcalcError: a rank cannot be run.
        """
        first, *others = ranks.ranks_to_run(self.program)
        if not others:
            return {first: self.trace(first)}
        return {rank: self._trace_in_fork(rank) for rank in (first, *others)}

    def _trace_in_fork(self, rank: int) -> Trace:
        """Run one rank in a new fork and return its trace."""
        answer = self._speaker.server.ask(JOB, RUN, {**self._request, "rank": rank})
        if "again" in answer:
            raise RetryRequestError(**answer["again"])
        return unpack(decode(bytes, answer["trace"]))

    def trace(self, rank: int) -> Trace:
        """Run one rank in this process and return its trace."""
        question, crumbs = self.question, self._speaker.breadcrumbs
        plan, request = question.plan, self._request
        keep = bool(request.get("keep"))
        cudnn = self._apply_settings(rank)
        try:
            with report_by_name(plan.model, crumbs.describe):
                traced = run.trace(
                    self.program,
                    lengths=request.get("lengths", ()),
                    detailed=keep,
                    # Figures alone do not need the names of operators.
                    named=not request.get("figures"),
                    counted=keep or bool(request.get("counted")),
                    values=plan.target != "cpu" and request.get("follows_values", True),
                    drop=crumbs.drop,
                )
        except RuntimeError as error:
            ran_out = type(error).__name__ == _OUT_OF_MEMORY
            if not ran_out or plan.generate is None or self.room >= UNLIMITED:
                raise
            # The answer is from the first device of 2, 4, 8 times the size on which it fits.
            raise RetryRequestError(room=2 * max(self.room, GIB)) from None
        notes = [
            *question.assumptions,
            *stand_ins.list_notes(),
            *traced.assumptions,
            *_note_card_size(question, self.room),
        ]
        missed = traced.uncounted
        if plan.target != "cpu":
            notes += loading.assumptions()
            if isinstance(cudnn, Missing) and (
                any(one.op.startswith(_CUDNN_PREFIXES) for one in traced.storages)
            ):
                missed = (*missed, *cudnn.uncounted)
        return replace(traced, assumptions=tuple(dict.fromkeys(notes)), uncounted=missed)

    def _apply_settings(self, rank: int) -> Library | Missing | None:
        """Apply the plan's settings to PyTorch and join the ranks; return cuDNN, None on CPU."""
        plan, target = self.question.plan, self.question.target
        spread = self.question.spread
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
        programs.configure(plan, uses_cudnn=self._request.get("uses_cudnn", True))
        if spread.layout != layouts.SINGLE:
            ranks.join(rank, spread.world)
        simulated_gpu.check(target)
        return cudnn


_ITSELF = "type --engine vllm --vllm 0.33, which starts vLLM itself (5.8 GB on disk)"
"""What answers for a model whose memory the rules of engines do not tell."""


def _predict_serving(plan: Plan, speaker: Speaker) -> Prediction:
    """Predict what a serving engine would reserve, by its rules.

    Raises:
        MemcalcError: it would not start, or its rules are unknown for such a model.
    """
    question = look_up(plan)
    assert question.gpu is not None
    if (question.source.config or {}).get("quantization_config"):
        raise UsageError(
            f"The checkpoint {plan.model} is quantized, which the rules of engines do not follow: "
            f"{_ITSELF}, or leave --engine out."
        )
    generates = SimulatedRun(replace(question, plan=generating(plan)), speaker, {}).program
    serves = ServingEngine(plan, question.gpu, _describe_model(generates))
    length = (generates.seq or 0) + (plan.generate or 0)
    # Refuse what no engine takes before anything is run.
    serves.check(length)
    probe = SimulatedRun(look_up(serves.probe()), speaker, {"keep": True})
    traced = probe.trace(0)
    state = state_for(probe.question, traced)
    prediction = predict(probe.question, Replays(traced, _make_player(speaker)), state)
    serving = serves.serving(read(traced, probe.question.plan.batch), length)
    return make_prediction(prediction, plan, serving, question.gpu)


def _allocator_room(question: ResolvedPlan) -> int:
    """Return the allocator's bytes on the plan's GPU with the largest context.

    They are 80 GiB if the plan names no GPU.
    """
    device = find_device(question)
    if device is None:
        return _DEFAULT_CARD
    return min(
        device.room(device.context.high),
        question.settings.reservable_bytes(device.capacity) or UNLIMITED,
    )


def _note_card_size(question: ResolvedPlan, room: int) -> Iterator[str]:
    """Yield a note on the simulated card's size, if a generation's figures depend on it."""
    size = format_bytes(room)
    if question.plan.generate is not None and question.gpu is None:
        yield f"reserved is from a run on a card of {size} (name yours with --gpu)"
    elif question.plan.generate is not None and room > _allocator_room(question):
        yield f"does not fit; reserved is from a run on an imaginary {size} card"


def _answer_ranks(simulated: SimulatedRun, request: dict[str, Any], play: Play) -> dict[str, Any]:
    """Return the answer of the rank that needs most, or with a row for each rank."""
    question, traces = simulated.question, simulated.trace_ranks()
    over, every = question.spread, question.plan.rank == "all"
    if len(traces) == 1 and not every:
        return _answer_run(question, next(iter(traces.values())), request, play)
    if over.stages == 1 and not every:
        return _answer_run(question, ranks.largest(traces, over.world), request, play)
    found = {rank: _answer_run(question, traced, request, play) for rank, traced in traces.items()}
    return combine_ranks(found, over)


def _answer_run(
    question: ResolvedPlan, traced: Trace, request: dict[str, Any], play: Play
) -> dict[str, Any]:
    """Return the prediction of a traced run, and of other plans by its replays."""
    run = Replays(traced, play)
    found = predict(question, run, state_for(question, traced))
    others = [
        predict_by_replay(look_up(decode(Plan, one), question.memory), run, found)
        for one in request.get("others", ())
    ]
    kept = {"trace": pack(traced)} if request.get("keep") else {}
    return {
        "prediction": encode(found),
        "others": [encode(one) for one in others],
        **kept,
    }


def _describe_model(program: Program) -> Model:
    """Return the model's properties that an engine's rules need."""
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
