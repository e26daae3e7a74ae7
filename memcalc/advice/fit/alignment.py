"""Batch and sequence sizes aligned for Tensor Cores.

Source: NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to use Tensor Cores":
dimensions that are multiples of 16 bytes are most efficient, of 128 bytes on an A100. In a
transformer the dimension that batch and sequence decide is their product, the tokens of a batch.
"""

from __future__ import annotations

import math

import msgspec

from memcalc.advice.fit.records import Limit
from memcalc.catalog.capabilities import Architecture
from memcalc.records.plan import Plan

_GUIDE = "NVIDIA, Matrix Multiplication Background User's Guide"


class Advice(msgspec.Struct, frozen=True):
    """A size, and why."""

    size: int
    reason: str


def multiple(precision: str, architecture: Architecture) -> int:
    """What the tokens of a batch should be a multiple of; 1 where no Tensor Cores run."""
    element = 2 if "16" in precision else 4
    if precision == "fp32" or (precision == "tf32" and not architecture.tf32):
        return 1
    return architecture.tile_bytes // element or 1


def advise(limit: Limit, plan: Plan, seq: int | None, architecture: Architecture) -> Advice | None:
    """The largest size up to the limit that makes whole tiles; ``None``: nothing fits.

    Args:
        limit: what fits.
        plan: its precision decides, and the size that is not searched.
        seq: tokens per sample of the plan.
        architecture: of the GPU.
    """
    most = limit.value(limit.best)
    if most is None:
        return None
    wanted = multiple(plan.precision, architecture)
    if wanted == 1:
        return Advice(most, "matrix products here do not use Tensor Cores, so any size is fine")
    guide = f"Tensor Cores like multiples of {wanted} in {plan.precision} ({_GUIDE})"
    if limit.axis == "seq":
        return Advice(most - most % wanted or most, guide)
    step = wanted // math.gcd(wanted, seq or 1)
    if step == 1:
        return Advice(most, f"any batch of {seq} tokens makes multiples of {wanted}; {guide}")
    if most < step:
        return Advice(most, f"too few for multiples of {wanted} tokens; {guide}")
    return Advice(most - most % step, guide)
