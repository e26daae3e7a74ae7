"""DeepSpeed's first stage: optimizer state in shards.

``zero1`` alone is PyTorch's own way; this is what stage 1 in a file of DeepSpeed means.
"""

from msgspec.structs import replace

from memcalc.workload.layouts import zero2

LAYOUT = replace(
    zero2.LAYOUT, name="deepspeed_zero1", summary="DeepSpeed: optimizer state in shards"
)
