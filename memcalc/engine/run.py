"""Runs a program for a few steps in this process and reads the allocator's history."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch.optim.optimizer import register_optimizer_step_pre_hook

from memcalc.engine import decisions, flops, ranks
from memcalc.engine import program as programs
from memcalc.engine import torch_internals as internals
from memcalc.engine.compiling import Compiling
from memcalc.engine.history import Timeline
from memcalc.engine.patches import Patches
from memcalc.engine.recorder import CpuRecorder, Recorder
from memcalc.engine.values import Values
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.trace import NO_GRADIENT, UNCOUNTED_FLOPS, Component, Phase, Trace
from memcalc.units import format_bytes
from memcalc.workload import inference, layerdrop, layouts, long_decode, loops, quantised
from memcalc.workload.inference import caches_of
from memcalc.workload.inputs import Batch, without_adapters
from memcalc.workload.job import Program
from memcalc.workload.prepare import finished

STEPS_ON_CPU = 2
"""There is no cache to settle: the second step is like all that follow."""
STEPS = 4
"""Three steps reach the peaks; what is reserved settles in the fourth in some runs."""
_NOTED = 0.1
"""Share of the trained weights."""
_UNREACHED = f"{{}} of weights {NO_GRADIENT} here (experts without tokens?): training may add it"


def trace(
    program: Program,
    *,
    detailed: bool = False,
    named: bool = True,
    counted: bool = False,
    values: bool = False,
    drop: Callable[[str], None] | None = None,
) -> Trace:
    """Run a program and read the birth and death of every block.

    The program's model has no memory yet; it is on the GPU afterwards. ``detailed`` names the
    operator and the dtype of every block of the last step, whatever time that takes; ``named`` its
    operators, as is done where cuDNN may run: what it needs beside the allocator is told by their
    names. ``counted`` runs one step more, and counts its floating-point operations; ``values``
    follows what the model's code reads back from the GPU; ``drop`` is always told where it is.
    """
    plan = program.plan
    steps = 1 if plan.infers else STEPS_ON_CPU if plan.target == "cpu" else STEPS
    watched = range(steps - 1, steps) if not plan.infers else _passes(program)
    recorder = _recorder(plan, watched, detailed, named or _may_convolve(program))
    followed = _Followed(plan, values)
    with ranks.followed(recorder, plan), followed:
        program, optimizer = _load(program, recorder)
        if drop is not None:
            followed.tell_places(program.model, drop)
        if optimizer is not None and plan.target != "cpu":
            _spare_host(optimizer)
        if plan.infers:
            _infer(program, recorder)
        else:
            _train(program, optimizer, recorder, steps)
    traced = followed.said_of(_read(program, recorder, steps))
    if plan.infers or not counted:
        return traced
    operations = flops.of_step(lambda counter: _one_more_step(program, optimizer, counter))
    if isinstance(operations, int):
        return replace(traced, flops=operations)
    return replace(traced, assumptions=(*traced.assumptions, f"{UNCOUNTED_FLOPS}: {operations}"))


def _may_convolve(program: Program) -> bool:
    """Whether cuDNN may run; of a callable, nothing is known."""
    of_cudnn = (torch.nn.modules.conv._ConvNd, torch.nn.RNNBase)
    modules = program.model.modules()
    return ":" in program.plan.model or any(isinstance(one, of_cudnn) for one in modules)


def _one_more_step(program: Program, optimizer: Any, counter: flops.Counter) -> int:
    """Operations of the loop's step: its micro-batches are alike, so that one of them is run."""
    job = programs.job(program, optimizer, program.plan.target)
    job = replace(job, plan=replace(job.plan, eval=None, compile=None, grad_accum=1), restore=None)
    watch = _OfEachBatch(counter)
    with layerdrop.off(program.model):
        loops.of(program.plan).run(job, watch, 1)
    return counter.total + watch.found * (program.plan.grad_accum - 1)


class _Followed(Patches):
    """Follows what a plan's code reads back from the GPU, and the compiler, meanwhile."""

    def __init__(self, plan: Plan, values: bool) -> None:
        super().__init__()
        self._said: dict[str, None] = {}
        if plan.compile is not None:
            Compiling(self._say).install(self)
        if plan.target != "cpu":
            known = Values(self._say)
            decisions.install(self, known, self._say)
            if values:
                known.install(self)
            # Triton's own key of kernels that are kept is a hash over its whole library.
            self.when_imported("triton.runtime.cache", self._key_by_version)
        self._unreached = ""
        if not plan.infers and layouts.spread(plan).layout == layouts.SINGLE:
            self.also(register_optimizer_step_pre_hook(self._look_at_gradients).remove)

    def _key_by_version(self, cache: Any) -> None:
        if hasattr(cache, "triton_key"):
            self.set(cache, "triton_key", lambda: sys.modules["triton"].__version__)

    def _say(self, assumed: str) -> None:
        self._said[assumed] = None

    def tell_places(self, model: torch.nn.Module, drop: Callable[[str], None]) -> None:
        """Say which module of a model runs, as it begins."""
        paths = {id(module): path for path, module in model.named_modules()}

        def begins(module: torch.nn.Module, _: Any) -> None:
            if path := paths.get(id(module)):
                drop(path)

        self.also(torch.nn.modules.module.register_module_forward_pre_hook(begins).remove)
        self.also(register_optimizer_step_pre_hook(lambda *_: drop("the optimizer's step")).remove)

    def _look_at_gradients(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        missing = sum(p.nbytes for p in weights if p.requires_grad and p.grad is None)
        if missing > _NOTED * sum(p.nbytes for p in weights):
            self._unreached = _UNREACHED.format(format_bytes(missing))

    def said_of(self, trace: Trace) -> Trace:
        """The trace with what is assumed of it, and what it lacks."""
        if self._unreached:
            trace = replace(trace, assumptions=(self._unreached, *trace.assumptions))
        return replace(trace, assumptions=(*trace.assumptions, *self._said))


def _spare_host(optimizer: Any) -> None:
    """Of an optimizer over parameters in host memory run one step, for two of each group.

    A step takes nothing of the GPU, and the host would calculate for real. The smallest and the
    largest parameter show whether it runs at all. It stays so for the life of this process.
    """
    groups, ran = getattr(optimizer, "param_groups", ()), False
    if any(p.device.type != "cpu" for group in groups for p in group["params"]):
        return

    def step(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal ran
        if ran:
            return None
        ran, whole = True, [group["params"] for group in groups]
        for group in groups:
            trained = [p for p in group["params"] if p.grad is not None]
            trained.sort(key=lambda p: p.numel())
            group["params"] = list(dict.fromkeys((*trained[:1], *trained[-1:])))
        try:
            return original(*args, **kwargs)
        finally:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters

    Patches().wrap(type(optimizer), "step", step)


class _OfEachBatch:
    """Adds up the operations of forward and backward."""

    def __init__(self, counter: flops.Counter) -> None:
        self._counter = counter
        self.found = 0

    @contextlib.contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        before = self._counter.total
        yield
        if phase in (Phase.FORWARD, Phase.BACKWARD):
            self.found += self._counter.total - before


def _recorder(
    plan: Plan, watched: Iterable[int], detailed: bool = False, named: bool = True
) -> Recorder:
    if plan.target == "cpu":
        return CpuRecorder(watched=watched, detailed=layouts.spread(plan).layout == layouts.SINGLE)
    device = torch.cuda.current_device()
    return Recorder(device=device, watched=watched, detailed=detailed, named=named)


def over_lengths(program: Program, lengths: Sequence[int], *, values: bool = False) -> Trace:
    """Train on one batch of each length, a step each; every step counts.

    ``values`` as for ``trace``.

    Raises:
        UsageError: the model takes no tokens.
    """
    plan = program.plan
    if program.seq is None:
        raise UsageError(f"{plan.name} takes no tokens: leave out --lengths.")
    recorder = _recorder(plan, ())
    coming = iter([length for length in lengths for _ in range(plan.grad_accum)])

    def batch() -> Batch:
        return _batch(program.resized(plan.batch, next(coming)), recorder)

    followed = _Followed(plan, values)
    with ranks.followed(recorder, plan), followed:
        program, optimizer = _load(program, recorder)
        job = programs.job(program, optimizer, plan.target)
        job = replace(job, batch=batch, plan=replace(plan, eval=None))
        with layerdrop.off(program.model):
            loops.of(plan).run(job, recorder, len(lengths))
    return followed.said_of(replace(_read(program, recorder, len(lengths)), whole=True))


def _read(program: Program, recorder: Recorder, steps: int) -> Trace:
    """The trace of a run that has ended."""
    plan = program.plan
    recorder.end()
    timeline = Timeline(recorder, recorder.history())
    return timeline.trace(
        inventory=program.inventory,
        steps=steps,
        seq=program.seq,
        sent=timeline.sent(steps - 1),
        whole=plan.infers,
        assumptions=tuple(_said(program, recorder)),
    )


def _passes(program: Program) -> tuple[int, ...]:
    """The passes of a generation that are followed: the prompt's, the first ones and the last."""
    last = (program.plan.generate or 1) - 1
    return tuple(sorted({0, 1, 2, last - 1, last}))


def _load(program: Program, recorder: Recorder) -> tuple[Program, Any]:
    """The program with its model on the GPU, under its layout, and the optimizer over it."""
    plan = program.plan
    recorder.wrapped = layouts.spread(plan).layout != layouts.SINGLE
    simulated, optimizer = plan.target != "cpu", None
    recorder.know(program.model)
    with recorder.phase(Phase.LOAD, 0):
        program = programs.place(program, plan.target, simulated=simulated)
        if plan.scheme is None and not plan.infers:
            optimizer = programs.optimizer(program, program.model.train())
        recorder.meet(program.model, optimizer)
    if plan.scheme is None:
        return program, optimizer
    if plan.infers and plan.adapters is None:
        return finished(program, program.model), None
    with recorder.phase(Phase.PREPARE, 0), Patches() as patches:
        for name in internals.DRAWS if simulated else ():
            # Adapters are made on the host, where drawing them takes seconds.
            patches.wrap(torch.nn.init, name, lambda _, tensor, *__, **___: tensor)
        program = finished(program, program.model)
        if not plan.infers:
            recorder.know(program.model)
            program = programs.wrap(program, plan.target, simulated=simulated)
            _name_quantised_shards(program.model, recorder)
            optimizer = programs.optimizer(program, program.model.train())
        recorder.meet(program.model, optimizer)
    return program, optimizer


def _train(program: Program, optimizer: Any, recorder: Recorder, steps: int) -> None:
    job = programs.job(program, optimizer, program.plan.target)
    job = replace(
        job, batch=lambda: _batch(program, recorder), simulated=program.plan.target != "cpu"
    )
    with layerdrop.off(program.model):
        loops.of(program.plan).run(job, recorder, steps)


def _infer(program: Program, recorder: Recorder) -> None:
    model = without_adapters(program.model)
    told, passes = set(_passes(program)), 0

    def given(module: Any, args: Any, named: dict[str, Any]) -> None:
        nonlocal passes
        passes += 1
        # A beam search orders its cache anew between two passes.
        if passes - 1 in told:
            recorder.name(Component.KV_CACHE, caches_of(named))

    def returned(module: Any, args: Any, outputs: Any) -> None:
        if isinstance(outputs, Mapping) and passes - 1 in told:
            recorder.kept_on_host = sum(
                one.nbytes for one in caches_of(outputs) if one.device.type == "cpu"
            )
            recorder.name(Component.KV_CACHE, caches_of(outputs))

    noted = replace(program, batch=lambda _: _batch(program, recorder))
    with contextlib.ExitStack() as hooks:
        hooks.callback(model.register_forward_pre_hook(given, with_kwargs=True).remove)
        hooks.callback(model.register_forward_hook(returned).remove)
        inference.run(
            noted,
            recorder,
            device=program.plan.target,
            between=lambda begins: recorder.pause() if begins else recorder.resume(),
        )


def _batch(program: Program, recorder: Recorder) -> Batch:
    made = program.batch(program.plan.target)
    recorder.name(Component.INPUTS, made.values())
    return made


def _name_quantised_shards(model: torch.nn.Module, recorder: Recorder) -> None:
    """Of weights in 4 bit that a wrapper divided, each layer still knows the constants."""
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        weight = getattr(module, "weight", None)
        if state is not None and isinstance(weight, torch.Tensor):
            recorder.name(Component.QUANTISATION_CONSTANTS, quantised.constants_in(state).values())
            recorder.name(Component.QUANTISED_WEIGHTS, [weight])


def _said(program: Program, recorder: Recorder) -> Iterator[str]:
    passes = program.plan.generate
    if program.plan.cache.startswith("offloaded"):
        yield (
            f"{recorder.kept_on_host:,} bytes of the cache are in pinned host memory at the end "
            "(PyTorch rounds each block up to a power of two); the GPU holds one layer and the next"
        )
    skipped = (long_decode.said(passes),) if passes and long_decode.is_long(passes) else ()
    scheme = () if program.plan.scheme is None else (quantised.described(program.inventory),)
    yield from dict.fromkeys((*program.assumptions, *scheme, *skipped))
