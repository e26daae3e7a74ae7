"""Predicts from closed forms alone: weights, gradients, states exact, the rest by formula."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple, replace

from memcalc import registry
from memcalc.catalog import dimensions, inventory
from memcalc.catalog.inventory import apply_precision
from memcalc.errors import UsageError
from memcalc.estimation import activations
from memcalc.estimation.activations import ActivationBytes
from memcalc.estimation.base_prediction import UNDIVIDED, build_prediction
from memcalc.estimation.fits import Device, cannot_fit, make_device
from memcalc.estimation.question import ResolvedPlan, look_up
from memcalc.records.model import Inventory, OptimizerState, Parameter, Place
from memcalc.records.plan import Plan
from memcalc.records.prediction import PhasePeak, Prediction
from memcalc.records.trace import Component, Phase
from memcalc.registry import Choice
from memcalc.units import format_bytes

_DIVIDED = ("fsdp1", "fsdp2", "hsdp", "zero3")
"""Layouts that divide weights, gradients and state alike."""
_UNCOUNTED = (
    *("kernels' workspaces", "allocator rounding and fragmentation", "CUDA context"),
    "evaluation and the logits it keeps",
)
"""The last one only where there is an evaluation."""
_LIST_TEMPORARIES = {"adadelta": 1, "adagrad": 2}
"""Whole lists of temporaries that a foreach step holds; one for the rest (torch/optim, 2.13)."""


class FixedBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that do not depend on the batch."""

    weights: int
    buffers: int
    states: int
    gradients: int
    scratch: int
    """Temporaries of the optimizer's step."""


def estimate(question: ResolvedPlan, inventories: dict[tuple[str, ...], Inventory]) -> Prediction:
    """Predict a plan's memory by closed forms alone, without running any code.

    ``inventories``: those of models that are known already; the plan's is added.

    Raises:
        MemcalcError: the method does not cover the plan, its model cannot be built, or the sizes
            in the model's config contradict each other.
    """
    plan, source, choice = question.plan, question.source, question.choice
    _check_covered(question)
    # Adapters are added by peft's own code, in the precision that it gives them.
    adapted = (plan.adapters, plan.precision) if plan.adapters is not None else ()
    key = (source.name, question.head.name, *adapted)
    if key not in inventories:
        inventories[key] = load_inventory(question)
    tensors = apply_precision(inventories[key], plan)
    state = registry.compute_state(choice, tensors.parameters, plan)
    if source.config is not None and (why := dimensions.refusal(source.config, source.name)):
        raise UsageError(why)
    live = activations.estimate(question, tensors)
    kept = _sum_fixed_bytes(question, tensors, state)
    levels, parts = _sum_phases(question, live, kept)
    top = max(levels, key=levels.__getitem__)
    # This verdict needs no replay: the bytes that every step holds exceed the GPU. A foreach step
    # has its whole list of temporaries beside them.
    least = sum(astuple(kept)) - (0 if choice.kind == "foreach" else kept.scratch)
    device = make_device(question.gpu) if question.gpu is not None else None
    fit = cannot_fit(least, device) if device is not None else None
    unknown = _explain_unknown(live, None if fit is not None else device, least, levels[top])
    phases = [PhasePeak(phase=phase, requested=level) for phase, level in levels.items()]
    return replace(
        build_prediction(question, tensors, state, phases, parts[top], "analytic"),
        config=source.digest,
        seq=live.seq,
        gradients=kept.gradients,
        fit=replace(fit, metric="requested") if fit is not None else None,
        assumptions=(
            *source.notes,
            *question.notes_at(plan.seq),
            *live.assumptions,
        ),
        uncounted=(
            *question.uncounted,
            *_UNCOUNTED[: None if plan.eval else -1],
            *plan.unread,
        ),
        unknown=unknown,
    )


def _check_covered(question: ResolvedPlan) -> None:
    """Raise UsageError for what closed forms do not cover."""
    plan = question.plan
    uncovered = {
        "several GPUs": question.spread.world > 1,
        "inference": plan.infers,
        f"a base in {plan.scheme}": plan.scheme is not None,
        "Liger's kernels": plan.liger,
        "products in float8": plan.float8 is not None,
        "compiled models": plan.compile is not None,
    }
    if what := next((what for what, asked in uncovered.items() if asked), None):
        raise UsageError(f"--method analytic does not cover {what}: leave it out.")


def load_inventory(question: ResolvedPlan) -> Inventory:
    """Return the parameters of a plan's model: shipped, or built in a child process.

    Raises:
        MemcalcError: the model cannot be built.
    """
    adapted = question.plan.adapters is not None
    shipped = None if adapted else inventory.load(question.source, question.head.name)
    if shipped is not None:
        return shipped
    from memcalc.estimation.engine import engine

    return engine.inventory(question.plan)


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
    question: ResolvedPlan, live: ActivationBytes, kept: FixedBytes
) -> tuple[dict[Phase, int], dict[Phase, dict[Component, int]]]:
    """Return the bytes of each phase of the steady step, and its components.

    Gradients and activations trade places in backward: its peak is at its start, where all
    activations and the gradient of the loss live, or at its end, where all gradients live.
    """
    plan = question.plan
    early = kept.gradients if plan.grad_accum > 1 or not plan.set_to_none else 0
    held = live.outputs if question.loop.keep_outputs(plan) else 0
    start = early + live.activations + live.loss_gradient
    backward = (early, live.activations, live.loss_gradient)
    if kept.gradients + held > start:
        backward = (kept.gradients, 0, held)
    moving = {
        Phase.FORWARD: (early, live.activations, held),
        Phase.BACKWARD: backward,
        Phase.STEP: (kept.gradients, 0, held + kept.scratch),
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


def _sum_fixed_bytes(
    question: ResolvedPlan, tensors: Inventory, state: OptimizerState
) -> FixedBytes:
    # Updated inside backward, no two parameters' gradients are held together.
    in_backward = question.plan.optim_in_backward or question.choice.row.in_backward
    together = [max(tensors.trainable, key=lambda p: p.numel)] if in_backward else None
    updated = together or list(tensors.trainable)
    return FixedBytes(
        weights=sum(p.bytes for p in tensors.parameters),
        buffers=sum(t.bytes for t in tensors.tensors if t.buffer),
        states=state.total(Place.DEVICE),
        gradients=sum(p.bytes for p in updated),
        scratch=_step_temporaries(question.choice, updated),
    )


def _step_temporaries(choice: Choice, updated: Sequence[Parameter]) -> int:
    """Return an optimizer step's temporary bytes: foreach copies lists (torch/optim/*.py, 2.13)."""
    sizes = [p.bytes for p in updated]
    if choice.kind == "foreach":
        if choice.row.name == "sgd":
            return 0
        return _LIST_TEMPORARIES.get(choice.row.name, 1) * sum(sizes)
    return sum(sorted(sizes)[-3:]) if choice.kind == "for-loop" else 0


def least(plan: Plan, tensors: Inventory) -> int:
    """Return a lower bound of the bytes on a GPU when backward ends, by closed forms.

    It counts weights, optimizer state, and all gradients unless each is used inside backward; with
    adapters, only the weights that they adapt. Over GPUs it is the mean of their shares, because
    the fullest GPU holds at least the mean; under ZeRO's first stage only state is shared. It is 0
    if shards wait in host memory.

    Raises:
        MemcalcError: the optimizer has no closed form, or nothing is left to train.
    """
    question = look_up(plan)
    spread, choice = question.spread, question.choice
    divided = spread.layout in _DIVIDED and "offload" not in dict(plan.parallel_args)
    shares_state = spread.layout == "zero1"
    whole = spread.layout in UNDIVIDED
    if plan.scheme is not None or not (whole or divided or shares_state):
        return 0
    shards = spread.shards if divided else 1
    # Adapters leave the weights around them in the plan's precision.
    planned = apply_precision(tensors, replace(plan, lora=None))
    weights = sum(parameter.bytes for parameter in planned.parameters)
    if plan.adapters is not None:
        return weights // shards
    state = registry.compute_state(choice, planned.parameters, plan).total(Place.DEVICE)
    at_once = plan.optim_in_backward or choice.row.in_backward
    gradients = 0 if at_once else sum(parameter.bytes for parameter in planned.trainable)
    if shares_state:
        return weights + gradients + state // spread.world
    return (weights + gradients + state) // shards
