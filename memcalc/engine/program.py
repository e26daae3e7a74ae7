"""Builds a plan's program, loads it on this process's device, and trains or infers."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from msgspec.structs import replace
from torch.overrides import TorchFunctionMode

from memcalc import registry
from memcalc.engine import torch_internals as internals
from memcalc.engine.follow.names import Names
from memcalc.engine.follow.phases import Phases
from memcalc.engine.patches import Patches
from memcalc.errors import EstimateError, MeasureError
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase
from memcalc.workload import float8, inference, layouts, liger, loops, quantized
from memcalc.workload.inputs import without_adapters
from memcalc.workload.job import Job, Program
from memcalc.workload.layouts import Rank
from memcalc.workload.model import with_weights
from memcalc.workload.optimizers import InBackward, make, restore, saved_state
from memcalc.workload.prepare import finish_quantized, make_program, prepare

Move = Callable[[torch.nn.Module], Any]
Make = Callable[[str, torch.Tensor], torch.Tensor]


def _enable_cudnn(wanted: bool) -> None:
    """Turn cuDNN's attention on or off; raise if this PyTorch has none to turn on."""
    enable = getattr(torch.backends.cuda, "enable_cudnn_sdp", None)
    if enable is not None:
        enable(wanted)
    elif wanted:
        sentence = f"PyTorch {torch.__version__} has no attention by cuDNN: leave --attention out."
        raise EstimateError(sentence)


_BACKENDS = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "cudnn": _enable_cudnn,
    "math": torch.backends.cuda.enable_math_sdp,
}


def configure(plan: Plan, *, uses_cudnn: bool = True) -> None:
    """Set PyTorch's global switches (TF32, cuDNN, attention) by a plan."""
    torch.backends.cuda.matmul.allow_tf32 = plan.precision == "tf32"
    torch.backends.cudnn.benchmark = plan.cudnn_benchmark
    if not plan.cudnn_attention:
        _enable_cudnn(False)
    if plan.attention in _BACKENDS:
        for name, enable in _BACKENDS.items():
            enable(name == plan.attention or name == "math")
    if not uses_cudnn:
        torch.backends.cudnn.enabled = False


def build(plan: Plan, *, real_weights: bool) -> Program:
    """Build a plan's program; its model has real weights on the CPU, or is on the meta device."""
    choice = registry.of(plan)
    if real_weights and plan.scheme is not None:
        raise MeasureError(
            "With --quant the weights are random: leave --weights out, memory is the same."
        )
    if real_weights:
        model, task = with_weights(plan)
        return make_program(plan, choice, model, task)
    with parameters_on_meta():
        return prepare(plan, choice, device="cpu")


def _empty(name: str, like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized host tensor for a meta tensor: its pages stay untouched."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu") if like.is_meta else like


def load(
    program: Program,
    device: str,
    begin: Callable[[Phase], None],
    names: Names | None = None,
) -> tuple[Program, Any]:
    """Load a program's model on the device under its layout, and make its optimizer.

    Args:
        program: the built program.
        device: ``cuda`` or ``cpu``.
        begin: called with each phase that begins.
        names: labels the tensors of model and optimizer, on a simulated GPU or the CPU.

    Returns:
        The loaded program, and its optimizer, which is None for inference.
    """
    plan, optimizer = program.plan, None
    simulated = names is not None and device != "cpu"
    if names is not None:
        names.models.know(program.model)
    begin(Phase.LOAD)
    program = place(program, device, simulated=simulated)
    if plan.scheme is None and not plan.infers:
        optimizer = make_optimizer(program, program.model.train())
    if names is not None:
        names.meet(program.model, optimizer)
    if plan.scheme is None:
        return program, optimizer
    if plan.infers and plan.adapters is None:
        return finish_quantized(program, program.model), None
    begin(Phase.PREPARE)
    with Patches() as patches:
        for name in internals.DRAWS if simulated else ():
            # Adapters are made on the host, where random values take seconds.
            patches.wrap(torch.nn.init, name, lambda _, tensor, *__, **___: tensor)
        program = finish_quantized(program, program.model)
        if not plan.infers:
            if names is not None:
                names.models.know(program.model)
            program = _apply_layout(program, device, lambda model: model, simulated)
            optimizer = make_optimizer(program, program.model.train())
        if names is not None:
            names.meet(program.model, optimizer)
    return program, optimizer


def place(program: Program, device: str, *, simulated: bool = False) -> Program:
    """Move the model to this process's device, under the plan's layout.

    A quantized model gets its layout later, after its adapters. On a simulated device weights have
    no values, not even on the host.

    Raises:
        MeasureError: the number of processes is not the plan's.
    """
    wanted, (_, world) = layouts.spread(program.plan).world, _group()
    if wanted != world:
        raise MeasureError(f"The plan is one of {wanted} processes, and this is one of {world}.")
    if program.plan.scheme is not None:
        if device == "cpu":
            # Host memory is measured in this thread only.
            os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        checkpoint = quantized.make_checkpoint(program.model, program.plan)
        # A plan may load the base on the host, from where a wrapper moves it.
        place = str(dict(program.plan.parallel_args).get("load", _device(device)))
        make: Make = _empty if simulated else random
        loaded = quantized.load(program.model, checkpoint, program.plan, place, make)
        return replace(program, model=loaded)
    return _apply_layout(program, device, lambda model: to_device(model, device), simulated)


def _apply_layout(program: Program, device: str, move: Move, simulated: bool) -> Program:
    """Return the program with its model placed by the plan's layout."""
    number, _ = _group()
    if program.plan.liger:
        liger.apply(program.model)
    if program.plan.float8 is not None:
        float8.apply(program.model, program.plan)
    rank = Rank(
        number=number,
        spread=layouts.spread(program.plan),
        device=_device(device),
        options=layouts.arguments(program.plan),
        move=move,
        filler=functools.partial(filler, on_host=not simulated),
    )
    return replace(program, model=layouts.of(program.plan).place(program.model, rank))


def _group() -> tuple[int, int]:
    """Return this process's rank and the world size."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _device(device: str) -> torch.device:
    return torch.device(device if device == "cpu" else f"cuda:{torch.cuda.current_device()}")


def make_optimizer(program: Program, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Make the plan's optimizer for a loaded model."""
    if not program.in_backward:
        optimizer = make(program, model)
        if program.plan.float8 is not None:
            float8.precompute_scales(model, optimizer, program.plan)
        return optimizer
    trained = [p for p in model.parameters() if p.requires_grad]
    return InBackward(trained, lambda p: make(program, model, only=p))


def job(program: Program, optimizer: torch.optim.Optimizer, device: str) -> Job:
    """Make the job that the plan's loop runs; a resumed run also gets a saved state to load."""
    saved: dict[str, Any] = {}
    if program.plan.resume:
        saved = saved_state(optimizer)
        if device == "cuda":
            # A resumed run has not taken the step that made this state.
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


def train(job: Job, phases: Phases, steps: int) -> None:
    """Run a job's training loop; report loading and resuming to ``phases``."""
    restore = job.restore
    if restore is not None:

        def resume() -> None:
            with phases.during(Phase.RESUME):
                restore()

        job = replace(job, restore=resume)
    if job.wraps:
        phases.begin(Phase.LOAD)
    else:
        phases.begin_training()
    loops.of(job.plan).run(job, steps)
    phases.end_training()


def infer(
    program: Program, phases: Phases, *, between: Callable[[bool], None] | None = None
) -> None:
    """Run inference with a loaded model; report prefill and decoding to ``phases``."""
    model, target = program.model, program.plan.target
    with contextlib.ExitStack() as stack:
        if program.plan.generate is None:
            phases.begin(Phase.FORWARD)
        else:
            stack.enter_context(phases.follow_passes(without_adapters(model)))
        inference.run(program, device=target, between=between)


_SPREAD = 0.02
_LARGE = 512 << 20
"""Bytes above which floats are made on meta at once: the host may have no room for experts."""
_MMAP_THRESHOLD = -3
"""``M_MMAP_THRESHOLD`` of glibc's ``malloc.h``."""
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
_DRAWS = {"normal_", "trunc_normal_", "uniform_"}
"""Functions of ``torch.nn.init``, and functions of transformers around them."""


class _LargeOnMeta(TorchFunctionMode):
    """A mode that makes large tensors on meta: no computed buffer is that large.

    It also skips random values of meta tensors, which take as long as the rest of a model.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWS:
            drawn = args[0] if args else kwargs["tensor"]
            if drawn.is_meta:
                return drawn
        if func in _FACTORIES and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            meta = func(*args, **{**kwargs, "device": "meta"})
            if meta.is_floating_point() and meta.nbytes > _LARGE:
                return meta
        return func(*args, **kwargs)


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Make modules built inside have parameters on meta, but buffers with their real values.

    Buffers such as rotary frequencies are computed when a module is built and cannot be filled
    later; parameters can, and are large.
    """
    # Return a freed parameter to the system at once. In the heap a small object would take its
    # place and the next parameter would not fit: the heap of a large model grew until a fork was
    # refused.
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, 1 << 20)
    register = torch.nn.Module.register_parameter

    def on_meta(module: torch.nn.Module, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        # A tied parameter arrives a second time and must stay the same object.
        if parameter is not None and parameter.device.type != "meta":
            moved = torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            module._parameters[name] = moved

    torch.nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        with _LargeOnMeta():
            yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def random(name: str, like: torch.Tensor) -> torch.Tensor:
    """Return a random host tensor for a meta tensor; return any other tensor itself."""
    if not like.is_meta:
        return like
    made = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    return made.normal_(std=_SPREAD) if made.is_floating_point() else made.zero_()


def filler(model: torch.nn.Module, *, on_host: bool = True) -> Callable[[torch.nn.Module], None]:
    """Return a function that fills a model, or a part of it, after it got new memory.

    Parameters get random values, and of a sharded one only this rank's part. Buffers get their
    present values: positions from uninitialized memory would be outside of their table.
    ``on_host``: also fill parameters in host memory, which takes long.
    """
    values = {
        (id(module), name): buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_meta
    }

    def fill(placed: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter in placed.parameters():
                if parameter.is_floating_point() and (on_host or parameter.device.type != "cpu"):
                    # Filling a DTensor takes as long as a step.
                    shard = getattr(parameter, "to_local", lambda whole=parameter: whole)()
                    shard.normal_(std=_SPREAD)
            for module in placed.modules():
                for name, buffer in module._buffers.items():
                    value = values.get((id(module), name))
                    if buffer is not None and value is not None and not buffer.is_meta:
                        buffer.copy_(value)

    return fill


def to_device(model: torch.nn.Module, device: str) -> torch.nn.Module:
    """Move a model to a device: meta tensors get random values; tied tensors stay tied."""
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in moved:
            return moved[id(tensor)]
        if tensor.device.type != "meta":
            fresh = tensor.to(device, copy=True)
        else:
            fresh = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
            )
            if fresh.is_floating_point():
                torch.nn.init.normal_(fresh, std=_SPREAD)
        if isinstance(tensor, torch.nn.Parameter):
            fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
        moved[id(tensor)] = fresh
        return fresh

    for module in model.modules():
        for group in (module._parameters, module._buffers):
            for name, tensor in group.items():
                if tensor is not None:
                    group[name] = move(tensor)  # type: ignore[assignment]
        if isinstance(module, torch.nn.RNNBase):
            # Like ``RNNBase._apply``: cuDNN wants the weights in one buffer.
            module._init_flat_weights()
    return model
