"""The ways people train, as changes of a plan; what fits is never said here but estimated.

What a way says of the optimizer and of the precision stands; everything else of the plan stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcalc import registry
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.remedies.records import Change
from memcalc.remedies.table import half_of
from memcalc.suggestions.records import Way

_LORA = "r=16,target=all-linear"
_AMP = "Micikevicius et al. 2018, arXiv:1710.03740"
_8BIT = "Dettmers et al. 2022, arXiv:2110.02861"
_CORRECTED = "docs/optimizers.md and evidence/finetune.json of memcalc"
_QUANTISED = "Dettmers et al. 2023, arXiv:2305.14314: as good as 16 bit in its trials"
_ADAPTERS = "Hu et al. 2021, arXiv:2106.09685"


def ways(plan: Plan) -> Iterator[Way]:
    """What can be tried, what gives up least first."""
    half = half_of(plan)
    free: tuple[Change, ...] = (("keep_outputs", False), ("kv_cache", False))
    yield Way(
        key="full",
        title=f"full, {half} autocast",
        changes=(*free, ("precision", f"amp-{half}"), *_optimizer(plan)),
        costs="nothing: every weight trains, in fp32",
        source=_AMP,
    )
    yield Way(
        key="full-8bit",
        title=f"full, {half} autocast, 8-bit AdamW",
        changes=(*free, ("precision", f"amp-{half}"), *_to("adamw8bit")),
        costs="optimizer states are rounded to 8 bit",
        source=_8BIT,
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
            source=_CORRECTED,
        )
    yield Way(
        key="lora",
        title=f"LoRA r=16, {half}",
        changes=(
            *free,
            ("precision", half if half == "bf16" else f"amp-{half}"),
            ("lora", plan.lora or _LORA),
            *_optimizer(plan),
        ),
        costs="adapters train, the model itself does not",
        source=_ADAPTERS,
    )
    yield Way(
        key="qlora",
        title=f"QLoRA r=16, 4 bit, {half}",
        changes=(
            *free,
            ("precision", half if half == "bf16" else f"amp-{half}"),
            ("quant", plan.quant or "nf4-dq"),
            ("lora", plan.lora or _LORA),
            *_to("paged_adamw8bit"),
        ),
        costs="the model in 4 bit; adapters train",
        source=_QUANTISED,
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
