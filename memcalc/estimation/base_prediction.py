"""Builds the part that all predictions share: sizes, optimizer state, rules of thumb."""

from collections.abc import Sequence

from memcalc import registry
from memcalc.estimation.question import ResolvedPlan
from memcalc.records.model import DTYPE_BYTES, Inventory, OptimizerState, StateTensor
from memcalc.records.plan import Plan
from memcalc.records.prediction import Peak, PhasePeak, Prediction, RuleOfThumb
from memcalc.records.trace import Component, Trace, alive, program_end


def build_prediction(
    question: ResolvedPlan,
    inventory: Inventory,
    state: OptimizerState,
    phases: Sequence[PhasePeak],
    components: dict[Component, int],
    method: str,
) -> Prediction:
    """Build a prediction of requested bytes from its phases' peaks and components."""
    plan, top = question.plan, highest(phases)
    rule = question.choice.row.rule
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
        else rules_of_thumb(plan, inventory.numel, inventory.trainable_numel, rule),
        method=method,
    )


def highest(phases: Sequence[PhasePeak]) -> PhasePeak:
    """Return the phase with the highest peak."""
    return max(phases, key=lambda phase: phase.allocated or phase.requested)


def rules_of_thumb(
    plan: Plan, parameters: int, trainable: int, state_rule: float | None
) -> tuple[RuleOfThumb, ...]:
    """Return the rules of thumb that people compute from a model's size.

    Sources: transformers documentation, "Methods and tools for efficient training on a single GPU"
    (8, 4 and 2 bytes of optimizer state per parameter that trains) and "Model training anatomy" (18
    bytes per parameter for mixed-precision training with AdamW, 6 for inference); 24 bytes per
    parameter for fp32 training with AdamW is 16 for weights, gradients and states and half as much
    again.
    """
    inference: tuple[str, int, float] = ("mixed-precision inference", parameters, 6)
    rules = [inference]
    if not plan.infers:
        rules = [
            *([(f"{plan.optim} state", trainable, state_rule)] if state_rule is not None else []),
            ("mixed-precision AdamW training", parameters, 18),
            inference,
            ("fp32 AdamW training, all told", parameters, 24),
        ]
    return tuple(
        RuleOfThumb(name=name, bytes_per_parameter=each, bytes=round(count * each))
        for name, count, each in rules
    )


UNDIVIDED = ("single", "ddp")
"""Layouts in which each GPU holds all of the state."""

_SHARE = "this GPU's share of the state, from its run"
_OF_ITS_CODE = "from a run of the optimizer's own code; state in host memory is not included"


NO_STATE = OptimizerState(optimizer="none", implementation="none", tensors=())
"""The optimizer of a plan that trains nothing."""


def state_for(question: ResolvedPlan, trace: Trace) -> OptimizerState:
    """Describe the optimizer's state on one GPU, by closed form or from the trace.

    It follows from closed forms where the registry has them. For state that is divided over GPUs,
    and for the user's own classes, it is the state that the trace holds after the last step, which
    leaves out counters in host memory.
    """
    if question.plan.infers:
        return NO_STATE
    choice, whole = question.choice, question.spread.layout in UNDIVIDED
    if whole and (choice.row.closed_form or not choice.traceable):
        return registry.compute_state(choice, trace.inventory.parameters, question.plan)
    held = (trace.storages[number] for number in alive(trace, program_end(trace) - 1))
    return OptimizerState(
        optimizer=choice.name,
        implementation=choice.row.implementation,
        tensors=tuple(
            StateTensor(
                parameter=one.module,
                name=one.op,
                dtype=one.dtype or "uint8",
                numel=one.bytes // DTYPE_BYTES[one.dtype or "uint8"],
            )
            for one in held
            if one.component is Component.OPTIMIZER_STATE
        ),
        notes=(_OF_ITS_CODE if whole else _SHARE,),
    )
