"""Runs a program for a few steps in this process and reads the allocator's history."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from memcalc.engine import flops, ranks
from memcalc.engine import program as programs
from memcalc.engine.compiling import Compiling
from memcalc.engine.counters import Counters
from memcalc.engine.cpu_counters import CpuCounters
from memcalc.engine.follow.models import Models
from memcalc.engine.follow.names import Names
from memcalc.engine.follow.operators import Operators
from memcalc.engine.follow.phases import Phases
from memcalc.engine.follow.steps import Steps
from memcalc.engine.history import Timeline
from memcalc.engine.patches import Patches
from memcalc.engine.values import library_checks
from memcalc.engine.values.follower import Values
from memcalc.engine.values.reads import RULE, UNKNOWN
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.trace import NO_GRADIENT, UNCOUNTED_FLOPS, Component, Trace
from memcalc.units import format_bytes
from memcalc.workload import layerdrop, layouts, long_decode, loops, quantized
from memcalc.workload.inputs import Batch
from memcalc.workload.job import Program
from memcalc.workload.optimizers import InBackward

STEPS_ON_CPU = 2
"""Steps of a CPU run: without a cache, the second step equals all later ones."""
STEPS = 4
"""Steps of a GPU run: three reach the peaks, and reserved memory may settle in the fourth."""
_NOTED = 0.1
"""Share of trained weights without gradients above which the answer has a note."""
_UNREACHED = f"{{}} of weights {NO_GRADIENT} here (experts without tokens?): training may add it"


def trace(
    program: Program,
    *,
    lengths: Sequence[int] = (),
    detailed: bool = False,
    named: bool = True,
    counted: bool = False,
    values: bool = False,
    drop: Callable[[str], None] | None = None,
) -> Trace:
    """Run a program and return the trace of all allocations and frees.

    Args:
        program: a program whose model has no memory yet; it is on the device afterwards.
        lengths: train on one batch of each length, a step each; then every step counts.
        detailed: record the operator and dtype of every block of the last step, which takes time.
        named: record the operators; they also show whether cuDNN runs, so its programs always do.
        counted: run one more step to count its floating-point operations.
        values: follow what the model's code reads back from the GPU.
        drop: called with the place in the program as it changes.

    Raises:
        UsageError: there are lengths, and the model takes no tokens.
    """
    plan = program.plan
    if lengths and program.seq is None:
        raise UsageError(f"{plan.name} takes no tokens: leave out --lengths.")
    steps = 1 if plan.infers else STEPS_ON_CPU if plan.target == "cpu" else len(lengths) or STEPS
    watched = _passes(program) if plan.infers else () if lengths else (steps - 1,)
    how = {"detailed": detailed, "named": named or _may_convolve(program)}
    with _FollowedRun(plan, values, watched, **how) as followed:
        program, optimizer = programs.load(
            program, plan.target, followed.phases.begin, followed.names
        )
        if drop is not None:
            followed.names.drop = drop
        if optimizer is not None and plan.target != "cpu":
            step_offloaded_once(optimizer)
        if plan.infers:
            _infer(program, followed)
        else:
            _train(program, optimizer, followed, steps, lengths)
    traced = followed.trace(program, steps, whole=plan.infers or bool(lengths))
    if plan.infers or not counted:
        return traced
    operations = flops.count_step(lambda counter: _one_more_step(program, optimizer, counter))
    if isinstance(operations, int):
        return replace(traced, flops=operations)
    return replace(traced, assumptions=(*traced.assumptions, f"{UNCOUNTED_FLOPS}: {operations}"))


def _may_convolve(program: Program) -> bool:
    """Return True if cuDNN may run: a convolution or RNN, or the user's own model."""
    of_cudnn = (torch.nn.modules.conv._ConvNd, torch.nn.RNNBase)
    modules = program.model.modules()
    return ":" in program.plan.model or any(isinstance(one, of_cudnn) for one in modules)


def _one_more_step(program: Program, optimizer: Any, counter: flops.Counter) -> int:
    """Run one more step with one micro-batch; return the operations of the whole step."""
    job = programs.job(program, optimizer, program.plan.target)
    job = replace(job, plan=replace(job.plan, eval=None, compile=None, grad_accum=1), restore=None)
    begun: list[int] = []
    updates = 0

    def count_update(*_: Any) -> None:
        nonlocal updates
        updates += counter.total - begun.pop()

    with contextlib.ExitStack() as hooks, layerdrop.off(program.model):
        before = register_optimizer_step_pre_hook(lambda *_: begun.append(counter.total))
        hooks.callback(before.remove)
        hooks.callback(register_optimizer_step_post_hook(count_update).remove)
        loops.of(program.plan).run(job, 1)
    return counter.total + (counter.total - updates) * (program.plan.grad_accum - 1)


class _FollowedRun(Patches):
    """All observers of a run: phases, names, compiler and reads from the GPU."""

    def __init__(self, plan: Plan, values: bool, watched: Iterable[int], **how: bool) -> None:
        super().__init__()
        self._unreached: tuple[str, ...] = ()
        wrapped = layouts.spread(plan).layout != layouts.SINGLE
        if plan.target == "cpu":
            self.counters: Counters = CpuCounters(with_dtypes=not wrapped)
        else:
            torch.cuda.init()
            self.counters = Counters()
            self.counters.install(self)
        self.steps = Steps()
        [notes] = self.counters.notes
        self.counters.wrapped = wrapped
        models, operators = Models(self.counters, counted=False), Operators(notes, **how)
        self.names = Names(self.counters, models, self.steps, frozenset(watched), operators)
        self.phases = Phases(self.counters, self.steps, self.names)
        for part in (self.steps, self.names, self.phases):
            part.install(self)
        ranks.follow(self, self.counters, plan)
        if plan.compile is not None:
            Compiling(self.say).install(self)
        if plan.target != "cpu":
            own_code = ":" in plan.model
            known = Values(self.say if own_code else self._say_but_rule)
            library_checks.install(self, known)
            library_checks.skip_packed_sequences(self)
            if values:
                known.install(self)
            # Triton's cache key of kernels is a hash over its whole library.
            self.when_imported("triton.runtime.cache", self._key_by_version)
        if not plan.infers and not wrapped:
            self.also(register_optimizer_step_pre_hook(self._check_gradients).remove)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.names.end()
            self.counters.end()
        super().__exit__(*error)

    def trace(self, program: Program, steps: int, *, whole: bool) -> Trace:
        """Return the trace of a run that has ended."""
        [(notes, entries)] = self.counters.histories()
        timeline = Timeline(notes, entries, wrapped=self.counters.wrapped)
        return timeline.trace(
            inventory=program.inventory,
            steps=steps,
            seq=program.seq,
            sent=timeline.sent(steps - 1),
            whole=whole,
            assumptions=(
                *self._unreached,
                *_list_assumptions(program, self.names.cached_on_host),
                *self.assumptions,
            ),
        )

    def _key_by_version(self, cache: Any) -> None:
        """Make Triton's cache key its version, in place of a hash of its files."""
        if hasattr(cache, "triton_key"):
            self.set(cache, "triton_key", lambda: sys.modules["triton"].__version__)

    def _say_but_rule(self, assumed: str) -> None:
        """Add an assumption, except those on reads, which concern only the user's own code."""
        if assumed != RULE and not assumed.startswith(UNKNOWN.partition("{")[0]):
            self.say(assumed)

    def _check_gradients(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Add a note if many trained weights have no gradient at the optimizer's step."""
        if isinstance(optimizer, InBackward):
            return  # Its gradients were used and freed before.
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        missing = sum(p.nbytes for p in weights if p.requires_grad and p.grad is None)
        if missing > _NOTED * sum(p.nbytes for p in weights):
            self._unreached = (_UNREACHED.format(format_bytes(missing)),)


def step_offloaded_once(optimizer: Any) -> None:
    """Run an optimizer over host memory once, on the smallest and largest parameter per group.

    The step takes no GPU memory, and the host would really compute; two parameters show whether
    it runs at all. The device is looked up at each step: DeepSpeed and accelerate move a model from
    the host and give the optimizer other parameters, on the GPU. The patch stays for the life of
    this process.
    """
    ran: set[int] = set()

    def step(original: Any, stepping: Any, *args: Any, **kwargs: Any) -> Any:
        groups = getattr(stepping, "param_groups", ())
        devices = {p.device.type for group in groups for p in group["params"]}
        if devices != {"cpu"}:
            return original(stepping, *args, **kwargs)
        again = id(stepping) in ran
        ran.add(id(stepping))
        whole = [group["params"] for group in groups]
        for group in groups:
            trained = [p for p in group["params"] if p.grad is not None]
            trained.sort(key=lambda p: p.numel())
            few = () if again else (*trained[:1], *trained[-1:])
            group["params"] = list(dict.fromkeys(few))
        try:
            return original(stepping, *args, **kwargs)
        finally:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters

    Patches().wrap(type(optimizer), "step", step)


def _passes(program: Program) -> tuple[int, ...]:
    """Return the passes of a generation to record in detail: the first three and the last two."""
    last = (program.plan.generate or 1) - 1
    return tuple(sorted({0, 1, 2, last - 1, last}))


def _train(
    program: Program, optimizer: Any, followed: _FollowedRun, steps: int, lengths: Sequence[int]
) -> None:
    plan, phases = program.plan, followed.phases
    coming = iter([length for length in lengths for _ in range(plan.grad_accum)])

    def batch() -> Batch:
        sized = program.resize(plan.batch, next(coming)) if lengths else program
        return _make_batch(sized, followed.counters)

    # The checkpoint of a resumed run is made by a step that does not count.
    phases.leave()
    with followed.steps.pause_counting():
        job = programs.job(program, optimizer, plan.target)
    job = replace(job, batch=batch, simulated=plan.target != "cpu")
    if lengths:
        job = replace(job, plan=replace(plan, eval=None))
    with layerdrop.off(program.model):
        programs.train(job, phases, steps)


def _infer(program: Program, followed: _FollowedRun) -> None:
    counters = followed.counters
    followed.names.watch(0)
    programs.infer(
        replace(program, batch=lambda _: _make_batch(program, counters)),
        followed.phases,
        between=lambda begins: counters.pause() if begins else counters.resume(),
    )


def _make_batch(program: Program, counters: Counters) -> Batch:
    made = program.batch(program.plan.target)
    counters.name(Component.INPUTS, made.values())
    return made


def _list_assumptions(program: Program, kept_on_host: int) -> Iterator[str]:
    passes = program.plan.generate
    if program.plan.cache.startswith("offloaded"):
        yield (
            f"{kept_on_host:,} bytes of the cache are in pinned host memory at the end "
            "(PyTorch rounds each block up to a power of two); the GPU holds one layer and the next"
        )
    skipped = (long_decode.note(passes),) if passes and long_decode.is_long(passes) else ()
    scheme = () if program.plan.scheme is None else (quantized.describe(program.inventory),)
    yield from dict.fromkeys((*program.assumptions, *scheme, *skipped))
