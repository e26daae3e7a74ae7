"""The optimizer state of a run: by the registry's closed form, or from the run."""

from memcalc import registry
from memcalc.estimation.question import Asked
from memcalc.records.model import DTYPE_BYTES, OptimizerState, StateTensor
from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Trace
from memcalc.records.walk import alive, program_end
from memcalc.workload import layouts

_WHOLE = ("single", "ddp")
"""Layouts in which each GPU holds all of the state."""

_SHARE = "this GPU's share of the state, from its run"
_OF_ITS_CODE = "from a run of the optimizer's own code; state in host memory is not included"


NO_STATE = OptimizerState(optimizer="none", implementation="none", tensors=())
"""Of a plan that trains nothing."""


def is_whole(plan: Plan) -> bool:
    """Whether each GPU holds all weights, gradients and optimizer state of a plan."""
    return layouts.spread(plan).layout in _WHOLE


def state_for(question: Asked, trace: Trace) -> OptimizerState:
    """What the optimizer keeps on one GPU.

    Where state is divided over GPUs, no closed form is kept of the division, and of a class of
    somebody's own there is none: it is what the trace holds after the last step, which leaves out
    counters in host memory.
    """
    if question.plan.infers:
        return NO_STATE
    choice = question.choice
    whole = is_whole(question.plan)
    if whole and (choice.row.closed_form or not choice.traceable):
        return registry.state_of(choice, trace.inventory.parameters, question.plan)
    held = (trace.storages[number] for number in alive(trace, program_end(trace) - 1))
    return OptimizerState(
        optimizer=question.choice.name,
        implementation=question.choice.row.implementation,
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
