"""Common ways to train, as changes of a plan; whether they fit is estimated elsewhere.

What a way says of the optimizer and of the precision stands; everything else of the plan stays.
"""

from collections.abc import Iterator

from memcalc import registry
from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Change
from memcalc.advice.remedies.rows.lower_precision import half_of
from memcalc.advice.suggest.records import Way
from memcalc.catalog import models
from memcalc.catalog.quantized import scheme_in
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.values import USUAL_LORA

_FREE: tuple[Change, ...] = (("keep_outputs", False), ("kv_cache", False))
_PLAIN: tuple[Change, ...] = (*_FREE, ("quant", None), ("kbit_prepare", None))
"""Whatever the plan says of its base, here it is not quantized."""
_WHOLE: tuple[Change, ...] = (*_PLAIN, ("lora", None))
"""And no adapters train, but the model."""


def ways(plan: Plan) -> Iterator[Way]:
    """What can be tried, what gives up least first.

    A checkpoint that is quantized already takes adapters alone.
    """
    if scheme_in(models.find(plan.model).config) is None:
        yield from _unquantized(plan)
    half = half_of(plan)
    scheme = plan.scheme or "nf4-dq"
    bits = 4 if "4" in scheme else 8
    yield Way(
        key="qlora",
        title=f"QLoRA r=16, {bits} bit, {half}",
        changes=(
            *_FREE,
            ("precision", _loaded(half)),
            ("quant", scheme),
            ("lora", plan.lora or USUAL_LORA),
            *_to("paged_adamw8bit"),
        ),
        costs=f"{bits}-bit base model; only adapters train",
        source=rows.QLORA,
    )


def way_of(plan: Plan, key: str) -> Way | None:
    """The way of that name on the plan's GPU; ``None``: it does not compute so."""
    return next((way for way in ways(plan) if way.key == key), None)


def _unquantized(plan: Plan) -> Iterator[Way]:
    half = half_of(plan)
    yield Way(
        key="full",
        title=f"full, {half} autocast",
        changes=(*_WHOLE, ("precision", f"amp-{half}"), *_optimizer(plan)),
        costs="nothing: every weight trains, in fp32",
        source=rows.AMP,
    )
    yield Way(
        key="full-8bit",
        title=f"full, {half} autocast, 8-bit AdamW",
        changes=(*_WHOLE, ("precision", f"amp-{half}"), *_to("adamw8bit")),
        costs="optimizer states are rounded to 8 bit",
        source=rows.EIGHT_BIT,
    )
    if half == "bf16":
        yield Way(
            key="full-bf16",
            title="full, weights in bf16",
            changes=(
                *_WHOLE,
                ("precision", half),
                ("optim", "memcalc.adamw_bf16"),
                ("optim_args", ()),
            ),
            costs="weights in bf16; a correction term carries what rounding loses",
            source=rows.CORRECTED,
        )
    yield Way(
        key="lora",
        title=f"LoRA r=16, {half}",
        changes=(
            *_PLAIN,
            ("precision", _loaded(half)),
            ("lora", plan.lora or USUAL_LORA),
            *_optimizer(plan),
        ),
        costs="only adapters train",
        source=rows.LORA,
    )


def _loaded(half: str) -> str:
    """The precision of a model that adapters train on."""
    return half if half == "bf16" else f"amp-{half}"


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
