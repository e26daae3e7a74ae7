"""DeepSpeed's third stage: weights in shards as well, gathered module by module."""

from msgspec.structs import replace

from memcalc.dialects.deepspeed import ARGUMENTS, ARGUMENTS_3
from memcalc.workload.layouts import zero2

LAYOUT = replace(
    zero2.LAYOUT,
    name="zero3",
    summary="DeepSpeed: weights, gradients and state in shards",
    options=tuple(sorted((*ARGUMENTS, *ARGUMENTS_3))),
)
