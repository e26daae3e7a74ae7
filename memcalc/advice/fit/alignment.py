"""Batch and sequence sizes aligned for Tensor Cores.

Source: NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to use Tensor Cores":
dimensions that are multiples of 16 bytes are most efficient, of 128 bytes on an A100. In a
transformer the dimension that batch and sequence decide is their product, the tokens of a batch.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from memcalc.advice.fit.records import Limit
from memcalc.catalog.capabilities import Architecture
from memcalc.records.plan import Plan

_GUIDE = "NVIDIA, Matrix Multiplication Background User's Guide"


def multiple(precision: str, architecture: Architecture) -> int:
    """What the tokens of a batch should be a multiple of; 1 where no Tensor Cores run."""
    element = 2 if "16" in precision else 4
    if precision == "fp32" or (precision == "tf32" and not architecture.tf32):
        return 1
    return architecture.tile_bytes // element or 1


def advised(limit: Limit, plan: Plan, seq: int | None, architecture: Architecture) -> Limit:
    """The limit with the largest size up to it that makes whole tiles, and why; if anything fits.

    Args:
        limit: what fits.
        plan: its precision decides, and the size that is not searched.
        seq: tokens per sample of the plan.
        architecture: of the GPU.
    """
    most = limit.value(limit.best)
    if most is None:
        return limit
    wanted = multiple(plan.precision, architecture)
    guide = f"Tensor Cores like multiples of {wanted} in {plan.precision} ({_GUIDE})"
    size, step = most, wanted // math.gcd(wanted, seq or 1)
    if wanted == 1:
        guide = "matrix products here do not use Tensor Cores, so any size is fine"
    elif limit.axis == "seq":
        size = most - most % wanted or most
    elif step == 1:
        guide = f"any batch of {seq} tokens makes multiples of {wanted}; {guide}"
    elif most < step:
        guide = f"too few for multiples of {wanted} tokens; {guide}"
    else:
        size = most - most % step
    return replace(limit, suggested=size, advice=guide)
