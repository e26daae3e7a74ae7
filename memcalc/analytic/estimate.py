"""A prediction from closed forms alone: weights, gradients, states exact, the rest by formula."""

from __future__ import annotations

import dataclasses
import fnmatch

from memcalc.analytic.activations import NO_FORM, Setting, read_blocks, saved
from memcalc.analytic.rules import rules_of_thumb
from memcalc.catalog.models import ModelSource
from memcalc.errors import UsageError
from memcalc.records import (
    Component,
    Inventory,
    OptimizerState,
    Parameter,
    Peak,
    Phase,
    PhasePeak,
    Place,
    Plan,
    Prediction,
)
from memcalc.registry import Choice

WEIGHT_BYTES = {"fp32": 4, "tf32": 4, "amp-fp16": 4, "amp-bf16": 4, "bf16": 2, "fp16": 2}
_COMPUTE_BYTES = {**WEIGHT_BYTES, "amp-fp16": 2, "amp-bf16": 2}
DEFAULT_SEQ = 512
_LIST_TEMPORARIES = {"adadelta": 1, "adagrad": 2}
"""Whole lists of temporaries that a foreach step holds; one for the rest (torch/optim, 2.13)."""


def estimate(
    plan: Plan, source: ModelSource, inventory: Inventory, state: OptimizerState, choice: Choice
) -> Prediction:
    """Predict without running any code.

    Args:
        plan: what to train.
        source: its config tells the sizes of the blocks.
        inventory: every tensor, in fp32.
        state: of the optimizer, for tensors of the plan's precision.
        choice: the optimizer.
    """
    element = WEIGHT_BYTES[plan.precision]
    weights = sum(p.numel * element for p in inventory.parameters)
    buffers = sum(t.bytes for t in inventory.tensors if t.buffer)
    gradients = sum(p.numel * element for p in inventory.trainable)
    states = state.total(Place.DEVICE)
    seq, activations = _activations(plan, source)
    kept = weights + buffers + states
    scratch = _step_temporaries(choice, inventory, element)
    known = activations or 0
    accumulated = gradients if plan.grad_accum > 1 else 0
    levels = {
        Phase.FORWARD: kept + known + accumulated,
        Phase.BACKWARD: kept + max(known + accumulated, gradients),
        Phase.STEP: kept + gradients + scratch,
        Phase.ZERO_GRAD: kept + gradients,
    }
    top = max(levels, key=lambda phase: levels[phase])
    parts = {
        Component.WEIGHTS: weights,
        Component.BUFFERS: buffers,
        Component.GRADIENTS: gradients if top is not Phase.FORWARD else accumulated,
        Component.OPTIMIZER_STATE: states,
    }
    parts[Component.ACTIVATIONS] = known if top in (Phase.FORWARD, Phase.BACKWARD) else 0
    if top is Phase.BACKWARD and plan.grad_accum == 1:
        parts[Component.GRADIENTS] = max(gradients - known, 0)
    parts[Component.TEMPORARIES] = levels[top] - sum(parts.values())
    reason = "the analytic method does not replay the allocator; use --method trace"
    unknown = dict.fromkeys(("allocated", "reserved", "process_used"), reason)
    if activations is None:
        unknown["activations"] = NO_FORM
        del parts[Component.ACTIVATIONS]
    return Prediction(
        plan=plan,
        head=inventory.head,
        task=inventory.task,
        seq=seq,
        parameters=sum(p.numel for p in inventory.parameters),
        parameter_tensors=len(inventory.parameters),
        trainable=sum(p.numel for p in inventory.trainable),
        components=parts,
        phases=tuple(PhasePeak(phase=phase, requested=level) for phase, level in levels.items()),
        peak=Peak(
            phase=top, requested=levels[top], allocated=None, reserved=None, process_used=None
        ),
        optimizer_state=state,
        rules_of_thumb=rules_of_thumb(
            plan,
            sum(p.numel for p in inventory.parameters),
            sum(p.numel for p in inventory.trainable),
            choice.rule_bytes_per_parameter,
        ),
        method="analytic",
        assumptions=_assumptions(plan, seq, activations),
        uncounted=("kernels' workspaces", "allocator rounding and fragmentation", "CUDA context"),
        unknown=unknown,
    )


def _activations(plan: Plan, source: ModelSource) -> tuple[int, int | None]:
    config = source.config or {}
    longest = config.get("max_position_embeddings") or config.get("n_positions")
    limit = longest if isinstance(longest, int) else DEFAULT_SEQ
    seq = plan.seq if plan.seq is not None else min(DEFAULT_SEQ, limit)
    blocks = read_blocks(config) if plan.lora is None else None
    if blocks is None:
        return seq, None
    setting = Setting(
        batch=plan.batch,
        seq=seq,
        element=_COMPUTE_BYTES[plan.precision],
        stored_scores=plan.attention in ("eager", "math"),
        checkpointing=plan.checkpointing,
        logits=plan.task == "causal-lm" or (plan.task == "auto" and _causal(config)),
    )
    return seq, saved(blocks, setting)


def _causal(config: dict[str, object]) -> bool:
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    return any("CausalLM" in str(name) or "LMHead" in str(name) for name in names)


def _step_temporaries(choice: Choice, inventory: Inventory, element: int) -> int:
    """Source: torch/optim/*.py, 2.13: foreach copies whole lists, the for-loop single tensors."""
    sizes = [p.numel * element for p in inventory.trainable]
    if choice.kind == "foreach":
        if choice.row.name == "sgd":
            return 0
        return _LIST_TEMPORARIES.get(choice.row.name, 1) * sum(sizes)
    if choice.kind == "for-loop":
        return sum(sorted(sizes)[-3:])
    return 0


def _assumptions(plan: Plan, seq: int, activations: int | None) -> tuple[str, ...]:
    notes = [f"{plan.batch} x {seq} tokens"]
    if activations is not None:
        notes.append("activations by the closed form of Korthikanti et al. 2022")
    else:
        notes.append(f"activations are left out: {NO_FORM}")
    return tuple(notes)


def as_planned(inventory: Inventory, plan: Plan) -> Inventory:
    """The inventory in the plan's precision, with what it freezes; buffers change dtype too.

    Raises:
        UsageError: a pattern matches no parameter, or nothing is left to train.
    """
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(plan.precision, "float32")
    for pattern in plan.freeze:
        if not any(fnmatch.fnmatch(p.name, pattern) for p in inventory.parameters):
            raise UsageError(f"--freeze {pattern!r} matches no parameter: try '*embeddings*'.")
    planned = dataclasses.replace(
        inventory, tensors=tuple(_planned(tensor, dtype, plan) for tensor in inventory.tensors)
    )
    if not planned.trainable:
        raise UsageError("Nothing is left to train: freeze fewer parameters.")
    return planned


def _planned(tensor: Parameter, dtype: str, plan: Plan) -> Parameter:
    frozen = any(fnmatch.fnmatch(tensor.name, pattern) for pattern in plan.freeze)
    floating = tensor.dtype in ("float32", "float16", "bfloat16")
    if (dtype == tensor.dtype or not floating) and not frozen:
        return tensor
    return dataclasses.replace(
        tensor,
        dtype=dtype if floating else tensor.dtype,
        trainable=tensor.trainable and not frozen,
    )
