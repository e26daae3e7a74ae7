"""DeepSpeed's second stage: optimizer state and gradients in shards.

The model waits on the host; ``deepspeed.initialize`` casts it, moves it and takes it over.
"""

from memcalc.dialects.deepspeed import ARGUMENTS
from memcalc.workload.layouts import Layout, fsdp2

LAYOUT = Layout(
    name="zero2",
    summary="DeepSpeed: state and gradients in shards",
    place=fsdp2.on_the_host,
    handed_over=fsdp2.on_the_host,
    options=tuple(sorted(ARGUMENTS)),
    loop="deepspeed",
    package="deepspeed",
)
