"""Estimates plans: plans in, predictions out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from memcalc import registry
from memcalc.catalog import inventory, models
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError, MemcalcError, UsageError
from memcalc.estimation.answers import Answer, Answers
from memcalc.estimation.question import shell_notes
from memcalc.estimation.validate import Checked, check
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.values import Method, check_value
from memcalc.workload import layouts


def analytic_answers(plans: Sequence[Plan]) -> Iterator[Prediction | MemcalcError]:
    """Predict each plan by closed forms; a plan that fails yields its error."""
    inventories: dict[tuple[str, ...], Inventory] = {}
    for plan in plans:
        try:
            yield _estimate_by_closed_forms(plan, inventories)
        except MemcalcError as error:
            yield error


def _estimate_by_closed_forms(
    plan: Plan, inventories: dict[tuple[str, ...], Inventory]
) -> Prediction:
    # Imported here: a trace does not need it.
    from memcalc.estimation import analytic

    checked = check(plan)
    uncovered = {
        "several GPUs": layouts.spread(plan).world > 1,
        "inference": plan.infers,
        f"a base in {plan.scheme}": plan.scheme is not None,
        "Liger's kernels": plan.liger,
        "products in float8": plan.float8 is not None,
        "compiled models": plan.compile is not None,
    }
    if what := next((what for what, asked in uncovered.items() if asked), None):
        raise UsageError(f"--method analytic does not cover {what}: leave it out.")
    source, choice = checked.source, checked.choice
    # Adapters are added by peft's own code, in the precision that it gives them.
    adapted = (plan.adapters, plan.precision) if plan.adapters is not None else ()
    key = (source.name, checked.head.name, *adapted)
    if key not in inventories:
        inventories[key] = load_inventory(checked)
    tensors = analytic.apply_precision(inventories[key], plan)
    state = registry.compute_state(choice, tensors.parameters, plan)
    answer = analytic.estimate(plan, source, tensors, state, choice, checked.gpu)
    return replace(
        answer,
        assumptions=(*models.notes(plan.model), *checked.notes, *answer.assumptions),
        uncounted=(*checked.uncounted, *answer.uncounted),
    )


def load_inventory(checked: Checked) -> Inventory:
    """Return the parameters of a plan's model: shipped, or built in a child process.

    Raises:
        MemcalcError: the model cannot be built.
    """
    plan = checked.plan
    shipped = inventory.load(checked.source, checked.head.name) if plan.adapters is None else None
    if shipped is not None:
        return shipped
    from memcalc.estimation.engine import engine

    return engine.inventory(plan)


def estimate(
    model: str | Plan, *, method: str = "trace", use_cache: bool = True, **settings: Any
) -> Prediction:
    """Predict the memory of one training run of a named model, as ``memcalc.estimate`` does."""
    plan = make({"model": model, **settings})
    answer = next(iter(answers([plan], method=method, use_cache=use_cache)))
    if isinstance(answer, MemcalcError):
        raise add_advice(answer, plan, method)
    return replace(answer, assumptions=(*answer.assumptions, *shell_notes(plan)))


def add_advice(error: MemcalcError, plan: Plan, method: str) -> MemcalcError:
    """Return the error of a failed trace with the advice to use ``--method analytic``.

    Other errors, and plans that the analytic method cannot answer either, return the error alone.
    """
    if not isinstance(error, EstimateError) or method == "analytic":
        return error
    if not isinstance(next(analytic_answers([plan])), Prediction):
        return error
    return EstimateError(
        f"{str(error).rstrip('.')}. Without a trace, --method analytic gives the weights, "
        "gradients and optimizer state alone."
    )


def answers(
    plans: Sequence[Plan],
    *,
    method: str = "trace",
    use_cache: bool = True,
    workers: int | None = 1,
    timeout: float = math.inf,
) -> Iterator[Answer]:
    """Predict plans in order by a method; a plan that fails yields its error.

    ``workers`` is the most processes that trace at once; with None the machine's memory decides.
    ``timeout``: seconds after which a run is ended with an error.
    """
    check_value("method", Method, method)
    if method == "analytic":
        yield from analytic_answers(plans)
        return
    yield from Answers(use_cache=use_cache, workers=workers, timeout=timeout).predict(plans)
