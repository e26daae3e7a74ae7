"""What every prediction says of its plan, whoever answers: sizes, the peak, and rules of thumb.

Sources of the rules: transformers documentation, "Methods and tools for efficient training on a
single GPU" (8, 4 and 2 bytes of optimizer state per parameter) and "Model training anatomy" (18
bytes per parameter for mixed-precision training with AdamW, 6 for inference); 24 bytes per
parameter for fp32 training with AdamW is 16 for weights, gradients and states and half as much
again.
"""

from collections.abc import Sequence

from memcalc.records.model import Inventory, OptimizerState
from memcalc.records.plan import Plan
from memcalc.records.prediction import Peak, PhasePeak, Prediction, RuleOfThumb
from memcalc.records.trace import Component
from memcalc.registry import Choice

_MIXED_TRAINING = 18
_MIXED_INFERENCE = 6
_WHOLE = 24


def described(
    plan: Plan,
    inventory: Inventory,
    choice: Choice,
    state: OptimizerState,
    phases: Sequence[PhasePeak],
    components: dict[Component, int],
    method: str,
) -> Prediction:
    """A prediction as far as requested bytes go; components are those of the highest phase."""
    top = highest(phases)
    return Prediction(
        plan=plan,
        head=inventory.head,
        config=inventory.config,
        task=inventory.task,
        seq=plan.seq,
        parameters=inventory.numel,
        parameter_tensors=len(inventory.parameters),
        trainable=inventory.trainable_numel,
        components=components,
        phases=tuple(phases),
        peak=Peak(phase=top.phase, requested=top.requested),
        optimizer_state=state,
        # The rules are for models; a script may train anything.
        rules_of_thumb=()
        if plan.command
        else rules_of_thumb(plan, inventory.numel, inventory.trainable_numel, choice.row.rule),
        method=method,
    )


def highest(phases: Sequence[PhasePeak]) -> PhasePeak:
    """The phase of the peak."""
    return max(phases, key=lambda phase: phase.allocated or phase.requested)


def rules_of_thumb(
    plan: Plan, parameters: int, trainable: int, state_rule: float | None
) -> tuple[RuleOfThumb, ...]:
    """The rules that a model's size lets people compute in their head.

    Args:
        plan: for the optimizer's name.
        parameters: number of parameters, tied once.
        trainable: those of them that train; only they have state.
        state_rule: bytes of state per parameter that the rule gives this optimizer.
    """
    if plan.infers:
        return _rules([("mixed-precision inference", parameters, _MIXED_INFERENCE)])
    rules: list[tuple[str, int, float]] = []
    if state_rule is not None:
        rules.append((f"{plan.optim} state", trainable, state_rule))
    rules.append(("mixed-precision AdamW training", parameters, _MIXED_TRAINING))
    rules.append(("mixed-precision inference", parameters, _MIXED_INFERENCE))
    rules.append(("fp32 AdamW training, all told", parameters, _WHOLE))
    return _rules(rules)


def _rules(rules: Sequence[tuple[str, int, float]]) -> tuple[RuleOfThumb, ...]:
    return tuple(
        RuleOfThumb(name=name, bytes_per_parameter=each, bytes=round(count * each))
        for name, count, each in rules
    )
