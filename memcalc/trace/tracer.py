"""A function that traces a program as it is at the moment, on the simulated GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.kernels.attention.call import Backend
from memcalc.kernels.attention.choice import choose
from memcalc.kernels.target import Target
from memcalc.records.trace import Bound, Phase, Trace
from memcalc.trace import device, self_check
from memcalc.trace.drive import infer, steps_of, train
from memcalc.trace.folding.fold import Run, trace_folded
from memcalc.trace.folding.layers import Stack
from memcalc.trace.folding.tagged import TaggedTrace, tag
from memcalc.trace.ledger import EnoughError
from memcalc.trace.operators import attention, autocast, gradients, overrides
from memcalc.trace.packages import bitsandbytes, flash_attn, liger, quanto, transformers
from memcalc.trace.placing import fold_length, placed
from memcalc.trace.recorder import TraceRecorder
from memcalc.trace.scratch.kernels import KernelMemory, TargetKernelMemory
from memcalc.trace.subclasses import data_watched
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.torch_private.choices import is_compiled, let_compiled_run_eagerly
from memcalc.trace.torch_private.dispatch import no_rules
from memcalc.trace.torch_private.names import installed_version
from memcalc.workload import layouts
from memcalc.workload.flash_attn import stood_for
from memcalc.workload.prequantised import names_layers
from memcalc.workload.program import Program

_CONTINUED = "repeated layers are traced a few times and continued, proven on one more"
_ATTENTION = {
    name: frozenset({Backend(name), Backend.MATH})
    for name in ("flash", "efficient", "cudnn", "math")
}


def tracer(
    program: Program,
    target: Target,
    said: dict[str, None],
    *,
    missing: dict[str, None] | None = None,
    bounded: dict[Bound, None] | None = None,
    breadcrumbs: Breadcrumbs | None = None,
    symbols: Symbols | None = None,
    rank: int = 0,
    kernels: KernelMemory | None = None,
) -> Run:
    """A function that traces the program as it is when called; arguments as for ``trace``.

    Args:
        program: what to run.
        target: the GPU and PyTorch to stand for.
        said: grows by what was assumed.
        missing: grows by what kernels take that nobody knows.
        bounded: grows by what they take that is known within limits.
        breadcrumbs: shall always say where the program is.
        symbols: of the program's batches.
        rank: which process, where the plan has several.
        kernels: what is told of kernels; ``None``: the target's own.
    """
    _install(program, target, said, symbols)
    kernels = kernels or (TargetKernelMemory(target) if symbols is None else symbols)
    target = target if symbols is None else symbols.watched(target)
    packages = _packages(program, target)

    def once(stacks: Sequence[Stack], repeats: int, until: tuple[Phase, ...] = ()) -> TaggedTrace:
        recorder = TraceRecorder(
            kernels if program.plan.target == "cuda" else None, breadcrumbs, symbols
        )
        recorder.cudnn_benchmark = target.cudnn_benchmark
        recorder.target = target
        recorder.ledger.units = _units(program.model, stacks, repeats)
        recorder.ledger.until = until
        run = _bare(program) if until else program
        recorder.kernels_of.update(packages)
        shapes = None if symbols is None else symbols.env
        with (
            no_rules(),
            data_watched(),
            _liger(program, target, recorder),
            transformers.experts_of(target),
            stood_for(program.plan),
            placed(run, recorder, shapes, rank) as (ready, named),
        ):
            with contextlib.suppress(EnoughError), torch.set_grad_enabled(not until):
                (infer if program.plan.infers else train)(ready, named, recorder)
            last = steps_of(program) - 1
            tagged = recorder.ledger.tagged_trace(
                recorder.operations.of_step(last), recorder.traffic.of_step(last)
            )
            if run.plan.scheme is not None:
                tagged = replace(tagged, inventory=ready.inventory)
        if until:
            # What a proof takes to be so is no part of the answer.
            return tagged
        said.update(dict.fromkeys(_assumed(recorder)))
        if missing is not None and isinstance(kernels, TargetKernelMemory):
            missing.update(dict.fromkeys(kernels.uncounted))
        if bounded is not None and isinstance(kernels, TargetKernelMemory):
            bounded.update(dict.fromkeys(kernels.bounds))
        return tagged

    return once


def _bare(program: Program) -> Program:
    """The same model, neither quantised nor divided, in the simplest loop."""
    plan = replace(
        program.plan,
        quant=None,
        devices=1,
        parallel=None,
        parallel_args=(),
        loop="plain",
        resume=False,
    )
    return replace(program, plan=plan)


def _packages(program: Program, target: Target) -> dict[str, Callable[[Any], Any]]:
    """What runs operators of packages, by their namespaces."""
    place, flash = program.plan.target, flash_attn.Kernels(target)
    return {
        bitsandbytes.NAMESPACE: bitsandbytes.Kernels(target, place),
        quanto.NAMESPACE: quanto.Kernels(place),
        **dict.fromkeys(flash_attn.NAMESPACES, flash),
    }


def _install(
    program: Program, target: Target, said: dict[str, None], symbols: Symbols | None
) -> None:
    """Let PyTorch do on the simulated device what it does on this target, and try it out."""
    device.use(program.plan.target)
    autocast.install()
    overrides.install(target.torch)
    let_compiled_run_eagerly()
    said.update(dict.fromkeys((*self_check.run(), *_of_another_torch(target), *_compiled(program))))
    allowed = _ATTENTION.get(program.plan.attention)
    attention.install(target, allowed, choose if symbols is None else symbols.choose)


def _assumed(recorder: TraceRecorder) -> Iterator[str]:
    yield from recorder.assumptions
    yield from recorder.said_of_values()
    yield from recorder.operations.said()
    yield from autocast.unread()
    yield from gradients.assumed()


def _liger(
    program: Program, target: Target, recorder: TraceRecorder
) -> contextlib.AbstractContextManager[None]:
    if not program.plan.liger:
        return contextlib.nullcontext()
    return liger.simulated(target, recorder.assume)


def _compiled(program: Program) -> Iterator[str]:
    if any(map(is_compiled, program.model.modules())):
        yield "torch.compile runs the eager code: what is fused on a GPU may need less"


def _of_another_torch(target: Target) -> Iterator[str]:
    installed = installed_version()
    if target.torch != installed:
        here, there = (".".join(map(str, version)) for version in (installed, target.torch))
        yield f"what runs is PyTorch {here}'s code; its kernels and allocator are those of {there}"


def folded(
    program: Program, once: Run, said: dict[str, None], breadcrumbs: Breadcrumbs | None = None
) -> TaggedTrace:
    """A trace continued from a few repetitions of layers, where they are alike.

    Args:
        program: what is run.
        once: traces it as it is when called.
        said: grows by what was assumed.
        breadcrumbs: this process is memcalc's own, may be copied, and leaves its place there.
    """
    if not layouts.of(program.plan).folds or names_layers(program.plan):
        return once([], 0)
    tagged, continued = trace_folded(program.model, once, fold_length(program), breadcrumbs)
    if continued:
        said[_CONTINUED] = None
    return tagged


def as_trace(tagged: TaggedTrace, program: Program, assumptions: tuple[str, ...]) -> Trace:
    """What was recorded, without the repetitions."""
    return Trace(
        storages=tuple(tagged.storages),
        events=tuple(tagged.events),
        marks=tuple(tagged.marks),
        asides=tuple(tagged.asides),
        inventory=tagged.inventory or program.inventory,
        steps=steps_of(program),
        seq=program.seq,
        flops=tagged.flops,
        sent=tagged.sent,
        whole=program.plan.infers,
        assumptions=assumptions,
        versions={"torch": str(torch.__version__)},
    )


def _units(model: torch.nn.Module, stacks: Sequence[Stack], repeats: int) -> dict[str, int]:
    """For every module inside a repeated layer, the tag of its repetition."""
    units = {}
    for number, stack in enumerate(stacks):
        layers = model.get_submodule(stack.path)
        for index, layer in enumerate(layers.children()):
            unit = stack.unit(index, repeats)
            if unit is not None:
                for name, _ in layer.named_modules(prefix=f"{stack.path}.{index}"):
                    units[name] = tag(number, unit)
    return units
