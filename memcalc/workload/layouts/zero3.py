"""DeepSpeed's third stage: weights in shards as well, gathered module by module."""

from __future__ import annotations

from memcalc.workload.layouts import Layout, zero2

LAYOUT = Layout(
    name="zero3",
    summary="DeepSpeed: weights, gradients and state in shards",
    place=zero2.place,
    handed_over=zero2.place,
    options=(
        *zero2.OPTIONS,
        *("offload_param", "stage3_max_live_parameters", "stage3_max_reuse_distance"),
        *("stage3_module_granularity_threshold", "stage3_param_persistence_threshold"),
        *("stage3_prefetch_bucket_size", "zero_hpz_partition_size"),
    ),
    loop="deepspeed",
    package="deepspeed",
)
