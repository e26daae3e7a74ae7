"""DeepSpeed's first stage: optimizer state in shards.

``zero1`` alone is PyTorch's own way; this is what stage 1 in a file of DeepSpeed means.
"""

from __future__ import annotations

from memcalc.workload.layouts import Layout, fsdp2, zero2

LAYOUT = Layout(
    name="deepspeed_zero1",
    summary="DeepSpeed: optimizer state in shards",
    place=fsdp2.on_the_host,
    handed_over=fsdp2.on_the_host,
    options=zero2.OPTIONS,
    loop="deepspeed",
    package="deepspeed",
)
