"""Common ways to train, as changes of a plan; whether they fit is estimated elsewhere.

A way sets the optimizer and the precision; everything else of the plan stays.
"""

from collections.abc import Iterator
from typing import Any

from memcalc import registry
from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Remedy
from memcalc.advice.remedies.rows import half_precision, row
from memcalc.catalog import models
from memcalc.catalog.quantized import find_scheme
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.values import USUAL_LORA

_FREE: dict[str, Any] = {"keep_outputs": False, "kv_cache": False}
_PLAIN = {**_FREE, "quant": None, "kbit_prepare": None}
"""The base is not quantized, also where the plan quantizes it."""
_WHOLE = {**_PLAIN, "lora": None}
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
    title, cost = f"QLoRA r=16, {bits} bit, {half}", f"{bits}-bit base model; only adapters train"
    yield row(
        *(0, "qlora", title, cost, rows.QLORA),
        **_FREE,
        precision=_base_precision(half),
        quant=scheme,
        lora=plan.lora or USUAL_LORA,
        optim="paged_adamw8bit",
        optim_args=(),
    )


def find_way(plan: Plan, key: str) -> Remedy | None:
    """Return the way to train with this key, or None if the plan's GPU cannot compute it."""
    return next((way for way in ways(plan) if way.key == key), None)


def _list_unquantized_ways(plan: Plan) -> Iterator[Remedy]:
    """Yield the ways over unquantized weights: full, 8-bit AdamW, bf16, LoRA."""
    half, fused = half_precision(plan), _fuse_optimizer(plan)
    title, cost = f"full, {half} autocast", "nothing: every weight trains, in fp32"
    yield row(0, "full", title, cost, rows.AMP, **_WHOLE, precision=f"amp-{half}", **fused)
    yield row(
        *(0, "full-8bit", f"{title}, 8-bit AdamW", "optimizer states are rounded to 8 bit"),
        rows.EIGHT_BIT,
        **_WHOLE,
        precision=f"amp-{half}",
        optim="adamw8bit",
        optim_args=(),
    )
    if half == "bf16":
        yield row(
            *(0, "full-bf16", "full, weights in bf16"),
            "weights in bf16; a correction term carries what rounding loses",
            rows.CORRECTED,
            **_WHOLE,
            precision=half,
            optim="memcalc.adamw_bf16",
            optim_args=(),
        )
    yield row(
        *(0, "lora", f"LoRA r=16, {half}", "only adapters train", rows.LORA),
        **(_PLAIN | {"precision": _base_precision(half), "lora": plan.lora or USUAL_LORA} | fused),
    )


def _base_precision(half: str) -> str:
    """Return the precision of a frozen base model under LoRA: bf16 or amp-fp16."""
    return half if half == "bf16" else f"amp-{half}"


def _fuse_optimizer(plan: Plan) -> dict[str, Any]:
    """Return the change to the fused step of the plan's optimizer, or {} if it has none."""
    try:
        takes = registry.find(plan.optim, {}).row.defaults
    except UsageError:
        return {}
    if "fused" not in takes or any(name in ("fused", "foreach") for name, _ in plan.optim_args):
        return {}
    return {"optim_args": (*plan.optim_args, ("fused", True))}
