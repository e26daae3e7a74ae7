"""DeepSpeed's third stage: weights in shards as well, gathered module by module."""

from __future__ import annotations

from memcalc.workload.layouts import Layout, fsdp2, zero2

LAYOUT = Layout(
    name="zero3",
    summary="DeepSpeed: weights, gradients and state in shards",
    place=fsdp2.on_the_host,
    handed_over=fsdp2.on_the_host,
    options=(
        *zero2.OPTIONS,
        *("offload_param", "stage3_max_live_parameters", "stage3_max_reuse_distance"),
        *("stage3_module_granularity_threshold", "stage3_param_persistence_threshold"),
        *("stage3_prefetch_bucket_size", "zero_hpz_partition_size"),
    ),
    loop="deepspeed",
    package="deepspeed",
)
