"""Predicts from closed forms alone: weights, gradients, states exact, the rest by formula."""

import fnmatch
from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple, replace

from memcalc import registry
from memcalc.catalog import dimensions
from memcalc.catalog.gpus import Gpu
from memcalc.catalog.models import ModelSource
from memcalc.catalog.positions import lengths
from memcalc.errors import UsageError
from memcalc.estimation.activations import (
    NO_FORM,
    NO_FORM_ADAPTERS,
    Setting,
    activation_bytes,
    loss_gradient,
    outputs,
    read_blocks,
)
from memcalc.estimation.base_prediction import build_prediction, is_whole
from memcalc.estimation.fits import Device, cannot_fit, make_device
from memcalc.records.model import Inventory, OptimizerState, Parameter, Place
from memcalc.records.plan import Plan
from memcalc.records.prediction import PhasePeak, Prediction
from memcalc.records.trace import Component, Phase
from memcalc.registry import Choice
from memcalc.units import format_bytes
from memcalc.workload import layouts, loops, tasks

_DIVIDED = ("fsdp1", "fsdp2", "hsdp", "zero3")
"""Layouts that divide weights, gradients and state alike."""
_UNCOUNTED = (
    *("kernels' workspaces", "allocator rounding and fragmentation", "CUDA context"),
    "evaluation and the logits it keeps",
)
"""The last one only where there is an evaluation."""
_LIST_TEMPORARIES = {"adadelta": 1, "adagrad": 2}
"""Whole lists of temporaries that a foreach step holds; one for the rest (torch/optim, 2.13)."""


class ActivationBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a run over one micro-batch keeps; all 0 if ``unknown`` gives a reason."""

    seq: int | None
    activations: int = 0
    """Saved for backward when forward ends."""
    loss_gradient: int = 0
    outputs: int = 0
    """Returned by the model; a loop may keep them until the next forward has ended."""
    unknown: str = ""


class FixedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that do not depend on the batch."""

    weights: int
    buffers: int
    states: int
    gradients: int


def estimate(
    plan: Plan,
    source: ModelSource,
    inventory: Inventory,
    state: OptimizerState,
    choice: Choice,
    gpu: Gpu | None = None,
) -> Prediction:
    """Predict a plan's memory by closed forms alone, without running any code.

    Raises:
        UsageError: the sizes in the config contradict each other.
    """
    if source.config is not None and (why := dimensions.refusal(source.config, source.name)):
        raise UsageError(why)
    # Updated inside backward, no two parameters' gradients are held together.
    in_backward = plan.optim_in_backward or choice.row.in_backward
    together = [max(inventory.trainable, key=lambda p: p.numel)] if in_backward else None
    updated = together or list(inventory.trainable)
    kept = FixedBytes(
        weights=sum(p.bytes for p in inventory.parameters),
        buffers=sum(t.bytes for t in inventory.tensors if t.buffer),
        states=state.total(Place.DEVICE),
        gradients=sum(p.bytes for p in updated),
    )
    live = _activation_bytes(plan, source, inventory)
    scratch = _step_temporaries(choice, updated)
    levels, parts = _sum_phases(plan, live, kept=kept, scratch=scratch)
    top = max(levels, key=levels.__getitem__)
    # This verdict needs no replay: the bytes that every step holds exceed the GPU. A foreach step
    # has its whole list of temporaries beside them.
    least = sum(astuple(kept)) + (scratch if choice.kind == "foreach" else 0)
    device = make_device(gpu) if gpu is not None else None
    fit = cannot_fit(least, device) if device is not None else None
    phases = [PhasePeak(phase=phase, requested=level) for phase, level in levels.items()]
    return replace(
        build_prediction(plan, inventory, choice, state, phases, parts[top], "analytic"),
        config=source.digest,
        seq=live.seq,
        gradients=kept.gradients,
        fit=replace(fit, metric="requested") if fit is not None else None,
        assumptions=_list_assumptions(plan, live),
        uncounted=(*_UNCOUNTED[: None if plan.eval else -1], *plan.unread),
        unknown=_explain_unknown(live, None if fit is not None else device, least, levels[top]),
    )


def _list_assumptions(plan: Plan, live: ActivationBytes) -> tuple[str, ...]:
    if live.unknown:
        return (f"activations are left out of every figure: {live.unknown}",)
    source = "activations by the closed form of Korthikanti et al. 2022, adapted"
    return (f"{plan.batch} x {live.seq} tokens", source)


def _explain_unknown(
    live: ActivationBytes, device: Device | None, least: int, peak: int
) -> dict[str, str]:
    """Return why figures are unknown, by the figure's name.

    ``device``: the GPU to fit; None if none was named, or the run certainly does not fit.
    """
    reason = "the analytic method does not replay the allocator; use --method trace"
    unknown = dict.fromkeys(("allocated", "reserved", "process_used"), reason)
    if device is not None:
        least += device.context.low
        by_form = "" if live.unknown else f", by closed form {format_bytes(peak)}"
        unknown["fit"] = (
            f"it needs at least {format_bytes(least)} of {format_bytes(device.capacity)}{by_form}; "
            "--method trace decides"
        )
    unknown["flops"] = "closed forms do not count floating-point operations"
    if live.unknown:
        unknown["activations"] = live.unknown
    return unknown


def _sum_phases(
    plan: Plan, live: ActivationBytes, *, kept: FixedBytes, scratch: int
) -> tuple[dict[Phase, int], dict[Phase, dict[Component, int]]]:
    """Return the bytes of each phase of the steady step, and its components.

    Gradients and activations trade places in backward: its peak is at its start, where all
    activations and the gradient of the loss live, or at its end, where all gradients live.
    """
    early = kept.gradients if plan.grad_accum > 1 or not plan.set_to_none else 0
    held = live.outputs if loops.of(plan).keep_outputs(plan) else 0
    start = early + live.activations + live.loss_gradient
    backward = (early, live.activations, live.loss_gradient)
    if kept.gradients + held > start:
        backward = (kept.gradients, 0, held)
    moving = {
        Phase.FORWARD: (early, live.activations, held),
        Phase.BACKWARD: backward,
        Phase.STEP: (kept.gradients, 0, held + scratch),
        Phase.ZERO_GRAD: (kept.gradients, 0, held),
    }
    parts = {
        phase: {
            Component.WEIGHTS: kept.weights,
            Component.BUFFERS: kept.buffers,
            Component.OPTIMIZER_STATE: kept.states,
            Component.GRADIENTS: gradients,
            Component.TEMPORARIES: temporaries,
            **({} if live.unknown else {Component.ACTIVATIONS: activations}),
        }
        for phase, (gradients, activations, temporaries) in moving.items()
    }
    return {phase: sum(part.values()) for phase, part in parts.items()}, parts


def _activation_bytes(plan: Plan, source: ModelSource, inventory: Inventory) -> ActivationBytes:
    config = source.config or {}
    blocks = read_blocks(config) if plan.adapters is None else None
    if blocks is None:
        return ActivationBytes(
            seq=plan.seq, unknown=NO_FORM if plan.adapters is None else NO_FORM_ADAPTERS
        )
    seq = plan.seq if plan.seq is not None else lengths(config).default
    setting = Setting(
        batch=plan.batch,
        seq=seq,
        element=2 if "16" in plan.precision else 4,
        stored_scores=plan.attention in ("eager", "math"),
        checkpointing=plan.checkpointing,
        logits=tasks.find(inventory.task).vocabulary,
    )
    # Autocast's 16-bit copies of the weights and biases that matrix products read: leaves that
    # train are cast once and kept, and backward reads the same copies (aten/src/ATen/
    # autocast_mode.cpp, ``cached_cast``, 2.13).
    read = [p for p in inventory.trainable if p.module in ("Linear", "Conv1D")]
    copies = sum(2 * p.numel for p in read) if plan.precision.startswith("amp") else 0
    return ActivationBytes(
        seq=seq,
        activations=activation_bytes(blocks, setting) + copies,
        loss_gradient=loss_gradient(blocks, setting),
        outputs=outputs(blocks, setting),
    )


def _step_temporaries(choice: Choice, updated: Sequence[Parameter]) -> int:
    """Return an optimizer step's temporary bytes: foreach copies lists (torch/optim/*.py, 2.13)."""
    sizes = [p.bytes for p in updated]
    if choice.kind == "foreach":
        if choice.row.name == "sgd":
            return 0
        return _LIST_TEMPORARIES.get(choice.row.name, 1) * sum(sizes)
    return sum(sorted(sizes)[-3:]) if choice.kind == "for-loop" else 0


def least(plan: Plan, inventory: Inventory) -> int:
    """Return a lower bound of the bytes on a GPU when backward ends, by closed forms.

    It counts weights, optimizer state, and all gradients unless each is used inside backward; with
    adapters, only the weights that they adapt. Over GPUs it is the mean of their shares, because
    the fullest GPU holds at least the mean; under ZeRO's first stage only state is shared. It is 0
    if shards wait in host memory.

    Raises:
        MemcalcError: the optimizer has no closed form, or nothing is left to train.
    """
    spread = layouts.spread(plan)
    divided = spread.layout in _DIVIDED and "offload" not in dict(plan.parallel_args)
    shares_state = spread.layout == "zero1"
    if plan.scheme is not None or not (is_whole(plan) or divided or shares_state):
        return 0
    shards = spread.shards if divided else 1
    # Adapters leave the weights around them in the plan's precision.
    planned = apply_precision(inventory, replace(plan, lora=None))
    weights = sum(parameter.bytes for parameter in planned.parameters)
    if plan.adapters is not None:
        return weights // shards
    choice = registry.of(plan)
    state = registry.compute_state(choice, planned.parameters, plan).total(Place.DEVICE)
    at_once = plan.optim_in_backward or choice.row.in_backward
    gradients = 0 if at_once else sum(parameter.bytes for parameter in planned.trainable)
    if shares_state:
        return weights + gradients + state // spread.world
    return (weights + gradients + state) // shards


def apply_precision(inventory: Inventory, plan: Plan) -> Inventory:
    """Return a model's tensors in the plan's precision, with its frozen parameters.

    With adapters the precision stays: the inventory has it already, and peft widens some tensors.

    Raises:
        UsageError: a pattern matches no parameter, or nothing is left to train.
    """
    half = "float16" if plan.precision == "fp16" else "bfloat16"
    whole = half if plan.half_weights else "float32"
    dtype = whole if plan.adapters is None else None
    for pattern in plan.freeze:
        if not any(fnmatch.fnmatch(p.name, pattern) for p in inventory.parameters):
            raise UsageError(f"--freeze {pattern!r} matches no parameter: try '*embeddings*'.")

    def apply_to_tensor(tensor: Parameter) -> Parameter:
        frozen = any(fnmatch.fnmatch(tensor.name, pattern) for pattern in plan.freeze)
        floating = tensor.dtype in ("float32", "float16", "bfloat16")
        wanted = dtype if dtype is not None and floating else tensor.dtype
        if wanted == tensor.dtype and not frozen:
            return tensor
        return replace(tensor, dtype=wanted, trainable=tensor.trainable and not frozen)

    planned = replace(inventory, tensors=tuple(map(apply_to_tensor, inventory.tensors)))
    if not planned.trainable:
        raise UsageError("Nothing is left to train: freeze fewer parameters.")
    return planned
