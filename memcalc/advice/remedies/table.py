"""The remedies of a plan, from the rows of the table."""

from __future__ import annotations

from memcalc.advice.remedies.records import Remedy
from memcalc.advice.remedies.rows import free, lower_precision, slower
from memcalc.catalog import models
from memcalc.records.plan import Plan
from memcalc.workload import tasks


def candidates(plan: Plan) -> list[Remedy]:
    """The remedies of a plan, cheapest first; what it does already is left out.

    Raises:
        UsageError: the plan names a model or task that is not known.
    """
    if plan.command:
        return []
    task = tasks.choose(models.find(plan.model), plan.task).task
    if plan.infers:
        found = [*free.of_kernels(plan), *lower_precision.of_inference(plan)]
    else:
        found = [
            *free.of_training(plan),
            *free.of_kernels(plan),
            *slower.of_pieces(plan, task),
            *slower.of_layouts(plan),
            *slower.of_losses(plan, task),
            *slower.of_backward(plan),
            *lower_precision.of_training(plan),
            *lower_precision.of_adapters(plan),
        ]
    return sorted(found, key=lambda remedy: remedy.rank)
