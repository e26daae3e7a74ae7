"""Remedies that train adapters instead of the model."""

from __future__ import annotations

from collections.abc import Iterator

from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Remedy
from memcalc.advice.remedies.rows.lower_precision import in_4_bit, not_in_4_bit, typed
from memcalc.records.compact_options import USUAL_LORA, adapter
from memcalc.records.plan import Plan
from memcalc.workload.tasks import Task


def lora(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Adapters train."""
    if plan.adapters is None:
        yield Remedy(
            key="LoRA",
            title=f"LoRA (--lora {USUAL_LORA})",
            changes=(("lora", USUAL_LORA),),
            rank=7,
            cost="only adapters train",
            source=rows.LORA,
        )


def lower_rank(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Smaller adapters of the same layers."""
    if plan.adapters is None:
        return
    rank = adapter(plan.adapters).r
    if rank < 2:
        return
    parts = [part.strip() for part in plan.adapters.split(",")]
    less = ",".join([f"r={rank // 2}", *(part for part in parts if not part.startswith("r="))])
    yield Remedy(
        key="lower rank",
        title=f"half the rank (--lora {less})",
        changes=(("lora", less),),
        rank=7,
        cost="adapters of half the size learn less",
        source=rows.LORA,
    )


def qlora(plan: Plan, task: Task) -> Iterator[Remedy]:
    """Adapters train, around weights in 4 bit."""
    if plan.scheme is not None:
        return
    changes = in_4_bit(plan, ("lora", plan.adapters or USUAL_LORA))
    yield Remedy(
        key="QLoRA",
        title=f"QLoRA ({typed(changes)})",
        changes=changes,
        rank=8,
        cost="only adapters train; 4-bit weights are dequantized for every product",
        source=rows.QLORA,
        unfit=not_in_4_bit(plan),
    )
