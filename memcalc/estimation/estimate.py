"""Estimates plans: plans in, predictions out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.catalog.plan import make
from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.answers import Answer, Answers
from memcalc.estimation.question import check, shell_notes
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.values import Method, check_value


def analytic_answers(plans: Sequence[Plan]) -> Iterator[Prediction | MemcalcError]:
    """Predict each plan by closed forms; a plan that fails yields its error."""
    # Imported here: a trace does not need it.
    from memcalc.estimation import analytic

    inventories: dict[tuple[str, ...], Inventory] = {}
    for plan in plans:
        try:
            question = check(plan)
            yield analytic.estimate(question, inventories)
        except MemcalcError as error:
            yield error


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
