"""The ways people train, as changes of a plan; what fits is never said here but estimated.

What a way says of the optimizer and of the precision stands; everything else of the plan stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcalc import registry
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.texts import USUAL_LORA
from memcalc.remedies import sources
from memcalc.remedies.records import Change
from memcalc.remedies.rows.rounded import half_of
from memcalc.suggestions.records import Way


def ways(plan: Plan) -> Iterator[Way]:
    """What can be tried, what gives up least first."""
    half = half_of(plan)
    loaded = half if half == "bf16" else f"amp-{half}"
    free: tuple[Change, ...] = (("keep_outputs", False), ("kv_cache", False))
    yield Way(
        key="full",
        title=f"full, {half} autocast",
        changes=(*free, ("precision", f"amp-{half}"), *_optimizer(plan)),
        costs="nothing: every weight trains, in fp32",
        source=sources.AMP,
    )
    yield Way(
        key="full-8bit",
        title=f"full, {half} autocast, 8-bit AdamW",
        changes=(*free, ("precision", f"amp-{half}"), *_to("adamw8bit")),
        costs="optimizer states are rounded to 8 bit",
        source=sources.EIGHT_BIT,
    )
    if half == "bf16":
        yield Way(
            key="full-bf16",
            title="full, weights in bf16",
            changes=(
                *free,
                ("precision", half),
                ("optim", "memcalc.adamw_bf16"),
                ("optim_args", ()),
            ),
            costs="weights in bf16; a correction term carries what rounding loses",
            source=sources.CORRECTED,
        )
    yield Way(
        key="lora",
        title=f"LoRA r=16, {half}",
        changes=(
            *free,
            ("precision", loaded),
            ("lora", plan.lora or USUAL_LORA),
            *_optimizer(plan),
        ),
        costs="adapters train, the model itself does not",
        source=sources.LORA,
    )
    yield Way(
        key="qlora",
        title=f"QLoRA r=16, 4 bit, {half}",
        changes=(
            *free,
            ("precision", loaded),
            ("quant", plan.scheme or "nf4-dq"),
            ("lora", plan.lora or USUAL_LORA),
            *_to("paged_adamw8bit"),
        ),
        costs="the model in 4 bit; adapters train",
        source=sources.QLORA,
    )


def _optimizer(plan: Plan) -> tuple[Change, ...]:
    """The plan's own, in its fused step where it has one."""
    try:
        takes = registry.find(plan.optim, {}).row.defaults
    except UsageError:
        return ()
    if "fused" not in takes or any(name in ("fused", "foreach") for name, _ in plan.optim_args):
        return ()
    return (("optim_args", (*plan.optim_args, ("fused", True))),)


def _to(optim: str) -> tuple[Change, ...]:
    return ("optim", optim), ("optim_args", ())
