"""From a plan to a program, an optimizer and a job on this process's device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from memcalc import registry
from memcalc.errors import MeasureError
from memcalc.records.plan import Plan
from memcalc.workload import layouts, liger, loops, quantised
from memcalc.workload.job import Job, Program
from memcalc.workload.layouts import Rank
from memcalc.workload.model import with_weights
from memcalc.workload.optimizers import InBackward, make, restore, saved_state
from memcalc.workload.placement import filler, parameters_on_meta, random, to_device
from memcalc.workload.prepare import prepare, program_of

Move = Callable[[torch.nn.Module], Any]
Make = Callable[[str, torch.Tensor], torch.Tensor]
_BACKENDS = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
}


def configure(plan: Plan) -> None:
    """Switch PyTorch to what a plan asks for."""
    torch.backends.cuda.matmul.allow_tf32 = plan.precision == "tf32"
    torch.backends.cudnn.benchmark = plan.cudnn_benchmark
    if not plan.cudnn_attention:
        torch.backends.cuda.enable_cudnn_sdp(False)
    if plan.attention in _BACKENDS:
        for name, enable in _BACKENDS.items():
            enable(name == plan.attention or name == "math")
    if os.environ.get("MEMCALC_NO_CUDNN"):
        # For comparisons with runs that had no cuDNN.
        torch.backends.cudnn.enabled = False


def build(plan: Plan, *, real_weights: bool) -> Program:
    """Build what a plan names; with real weights they are on the CPU, else there are none yet."""
    choice = registry.of(plan)
    if real_weights and plan.scheme is not None:
        raise MeasureError(
            "With --quant the weights are random: leave --weights out, memory is the same."
        )
    if real_weights:
        model, task = with_weights(plan)
        return program_of(plan, choice, model, task)
    with parameters_on_meta():
        return prepare(plan, choice, device="cpu")


def _empty(name: str, like: torch.Tensor) -> torch.Tensor:
    """An uninitialized host tensor of this shape and dtype: its pages stay untouched."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu") if like.is_meta else like


def place(program: Program, device: str, *, simulated: bool = False) -> Program:
    """Put the model on this process's device, under the plan's layout.

    A quantized model is not under it yet: it is finished first (``wrap``).

    Args:
        program: its model has no memory yet.
        device: where to, by the name PyTorch knows it.
        simulated: give no values to weights, on the host either: nobody looks at them.
    """
    wanted, (_, world) = layouts.spread(program.plan).world, _group()
    if wanted != world:
        raise MeasureError(f"The plan is one of {wanted} processes, and this is one of {world}.")
    if program.plan.scheme is not None:
        if device == "cpu":
            # The meter of host memory follows this thread alone.
            os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        checkpoint = quantised.written(program.model, program.plan)
        # A plan may have the base loaded elsewhere, from where a wrapper brings it here.
        place = str(dict(program.plan.parallel_args).get("load", _device(device)))
        make: Make = _empty if simulated else random
        loaded = quantised.load(program.model, checkpoint, program.plan, place, make)
        return replace(program, model=loaded)
    return _laid_out(program, device, lambda model: to_device(model, device), simulated)


def wrap(program: Program, device: str, *, simulated: bool = False) -> Program:
    """Put a model that is on this process's device under the plan's layout."""
    return _laid_out(program, device, lambda model: model, simulated)


def _laid_out(program: Program, device: str, move: Move, simulated: bool) -> Program:
    spread = layouts.spread(program.plan)
    number, world = _group()
    if program.plan.liger:
        liger.apply(program.model)
    rank = Rank(
        number=number,
        world=world,
        device=_device(device),
        sizes=spread.sizes,
        options=layouts.arguments(program.plan),
        move=move,
        fill=filler(program.model, on_host=not simulated),
    )
    return replace(program, model=layouts.of(program.plan).place(program.model, rank))


def _group() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _device(device: str) -> torch.device:
    return torch.device(device if device == "cpu" else f"cuda:{torch.cuda.current_device()}")


def optimizer(program: Program, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer over a model that is on its device."""
    if not program.in_backward:
        return make(program, model)
    trained = [p for p in model.parameters() if p.requires_grad]
    return InBackward(trained, lambda p: make(program, model, only=p))


def job(program: Program, optimizer: torch.optim.Optimizer, device: str) -> Job:
    """Put together what the loop runs; a run that resumes gets a checkpoint to load."""
    saved: dict[str, Any] = {}
    if program.plan.resume:
        saved = saved_state(optimizer)
        if device == "cuda":
            # A run that resumes has not taken the step whose state stands for the checkpoint's.
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
    loop = loops.of(program.plan)
    return Job(
        plan=program.plan,
        model=program.model,
        optimizer=optimizer,
        batch=lambda: program.batch(device),
        device=device,
        max_grad_norm=loop.clip_to(program.plan),
        keep_outputs=loop.keep_outputs(program.plan),
        restore=(lambda: restore(optimizer, saved)) if program.plan.resume else None,
    )
