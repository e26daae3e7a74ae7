"""Answers by closed forms, without a run; for bundled models without importing PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from memcalc import registry
from memcalc.catalog import inventory, models
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.analytic import as_planned
from memcalc.estimation.analytic import estimate as by_closed_forms
from memcalc.estimation.validate import Checked, check
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.workload import layouts

if TYPE_CHECKING:
    from memcalc.estimation.client import Client


def answers(plans: Sequence[Plan]) -> Iterator[Prediction | MemcalcError]:
    """Answer each plan, or say why it cannot be."""
    with Inventories() as inventories:
        for plan in plans:
            try:
                yield _answer(plan, inventories)
            except MemcalcError as error:
                yield error


def _answer(plan: Plan, inventories: Inventories) -> Prediction:
    checked = check(plan)
    uncovered = {
        "several GPUs": layouts.spread(plan).world > 1,
        "inference": plan.infers,
        f"a base in {plan.scheme}": plan.scheme is not None,
        "Liger's kernels": plan.liger,
        "compiled models": plan.compile is not None,
    }
    if what := next((what for what, asked in uncovered.items() if asked), None):
        raise UsageError(f"--method analytic does not cover {what}: leave it out.")
    source, choice = checked.source, checked.choice
    tensors = as_planned(inventories.of(checked), plan)
    state = registry.state_of(choice, tensors.parameters, plan)
    answer = by_closed_forms(plan, source, tensors, state, choice, checked.gpu)
    notes = (*models.notes(plan.model), *checked.notes)
    return replace(
        answer,
        assumptions=(*notes, *answer.assumptions),
        uncounted=(*checked.uncounted, *answer.uncounted),
    )


class Inventories:
    """The tensors of models; those that are not shipped are built once, in a child process."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._client: Client | None = None
        self._known: dict[tuple[str, ...], Inventory] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, checked: Checked) -> Inventory:
        """The inventory of a plan's model with its head.

        Raises:
            MemcalcError: the model cannot be built.
        """
        plan, source, head = checked.plan, checked.source, checked.head
        # Adapters are added by peft's own code, in the precision that it gives them.
        adapted = (plan.adapters, plan.precision) if plan.adapters is not None else ()
        key = (source.name, head.name, *adapted)
        if key not in self._known:
            shipped = inventory.load(source, head.name) if not adapted else None
            self._known[key] = shipped or self._built(plan)
        return self._known[key]

    def _built(self, plan: Plan) -> Inventory:
        from memcalc.estimation.client import Client, warm_engines

        if self._client is None:
            engines = self._stack.enter_context(warm_engines)
            self._client = self._stack.enter_context(Client(engines))
        answer = self._client.inventory(plan)
        if isinstance(answer, MemcalcError):
            raise answer
        return answer
