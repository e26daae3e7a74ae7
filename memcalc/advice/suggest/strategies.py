"""Common ways to train, as changes of a plan; whether they fit is estimated elsewhere.

A way sets the optimizer and the precision; everything else of the plan stays.
"""

from collections.abc import Iterator

from memcalc import registry
from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Change, Remedy
from memcalc.advice.remedies.rows import half_precision
from memcalc.catalog import models
from memcalc.catalog.quantized import find_scheme
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.values import USUAL_LORA

_FREE: tuple[Change, ...] = (("keep_outputs", False), ("kv_cache", False))
_PLAIN: tuple[Change, ...] = (*_FREE, ("quant", None), ("kbit_prepare", None))
"""The base is not quantized, also where the plan quantizes it."""
_WHOLE: tuple[Change, ...] = (*_PLAIN, ("lora", None))
"""The same, and the model trains instead of adapters."""


def ways(plan: Plan) -> Iterator[Remedy]:
    """Yield the ways to train (full, 8-bit, bf16, LoRA, QLoRA) as changes of the plan.

    A checkpoint that is quantized already takes adapters alone.
    """
    if find_scheme(models.find(plan.model).config) is None:
        yield from _list_unquantized_ways(plan)
    half = half_precision(plan)
    scheme = plan.scheme or "nf4-dq"
    bits = 4 if "4" in scheme else 8
    yield Remedy(
        key="qlora",
        title=f"QLoRA r=16, {bits} bit, {half}",
        changes=(
            *_FREE,
            ("precision", _base_precision(half)),
            ("quant", scheme),
            ("lora", plan.lora or USUAL_LORA),
            *_change_optimizer("paged_adamw8bit"),
        ),
        cost=f"{bits}-bit base model; only adapters train",
        source=rows.QLORA,
    )


def find_way(plan: Plan, key: str) -> Remedy | None:
    """Return the way to train with this key, or None if the plan's GPU cannot compute it."""
    return next((way for way in ways(plan) if way.key == key), None)


def _list_unquantized_ways(plan: Plan) -> Iterator[Remedy]:
    """Yield the ways over unquantized weights: full, 8-bit AdamW, bf16, LoRA."""
    half = half_precision(plan)
    yield Remedy(
        key="full",
        title=f"full, {half} autocast",
        changes=(*_WHOLE, ("precision", f"amp-{half}"), *_fuse_optimizer(plan)),
        cost="nothing: every weight trains, in fp32",
        source=rows.AMP,
    )
    yield Remedy(
        key="full-8bit",
        title=f"full, {half} autocast, 8-bit AdamW",
        changes=(*_WHOLE, ("precision", f"amp-{half}"), *_change_optimizer("adamw8bit")),
        cost="optimizer states are rounded to 8 bit",
        source=rows.EIGHT_BIT,
    )
    if half == "bf16":
        yield Remedy(
            key="full-bf16",
            title="full, weights in bf16",
            changes=(
                *_WHOLE,
                ("precision", half),
                ("optim", "memcalc.adamw_bf16"),
                ("optim_args", ()),
            ),
            cost="weights in bf16; a correction term carries what rounding loses",
            source=rows.CORRECTED,
        )
    yield Remedy(
        key="lora",
        title=f"LoRA r=16, {half}",
        changes=(
            *_PLAIN,
            ("precision", _base_precision(half)),
            ("lora", plan.lora or USUAL_LORA),
            *_fuse_optimizer(plan),
        ),
        cost="only adapters train",
        source=rows.LORA,
    )


def _base_precision(half: str) -> str:
    """Return the precision of a frozen base model under LoRA: bf16 or amp-fp16."""
    return half if half == "bf16" else f"amp-{half}"


def _fuse_optimizer(plan: Plan) -> tuple[Change, ...]:
    """Return the change to the fused step of the plan's optimizer, or () if it has none."""
    try:
        takes = registry.find(plan.optim, {}).row.defaults
    except UsageError:
        return ()
    if "fused" not in takes or any(name in ("fused", "foreach") for name, _ in plan.optim_args):
        return ()
    return (("optim_args", (*plan.optim_args, ("fused", True))),)


def _change_optimizer(optim: str) -> tuple[Change, ...]:
    return ("optim", optim), ("optim_args", ())
