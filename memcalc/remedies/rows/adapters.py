"""Remedies that train other parameters than the model has."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.estimation.understand import checkpoint_refusal, quant_refusal
from memcalc.records.plan import Plan
from memcalc.records.texts import USUAL_LORA
from memcalc.remedies import sources
from memcalc.remedies.records import Change, Remedy
from memcalc.remedies.rows.rounded import half_of
from memcalc.workload.tasks import Task


def lora(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Adapters train."""
    if plan.adapters is None:
        yield Remedy(
            key="LoRA",
            title=f"LoRA (--lora {USUAL_LORA})",
            changes=(("lora", USUAL_LORA),),
            rank=7,
            cost="adapters train, the model itself does not",
            source=sources.LORA,
        )


def qlora(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Adapters train, around weights in 4 bit."""
    if plan.scheme is not None:
        return
    changes: tuple[Change, ...] = (("quant", "nf4-dq"), ("lora", plan.adapters or USUAL_LORA))
    if plan.precision in ("fp32", "tf32"):
        changes = (*changes, ("precision", half_of(plan)))
    asked, source = replace(plan, quant="nf4-dq"), models.find(plan.model)
    refused = checkpoint_refusal(asked, source) is not None
    quantised_already = "the checkpoint is quantised already, in another way" if refused else None
    yield Remedy(
        key="QLoRA",
        title=f"QLoRA ({' '.join(f'--{name} {value}' for name, value in changes)})",
        changes=changes,
        rank=8,
        cost="adapters train, on weights rounded to 4 bit that every product turns back",
        source=sources.QLORA,
        unfit=quant_refusal(asked, source) or quantised_already,
    )
