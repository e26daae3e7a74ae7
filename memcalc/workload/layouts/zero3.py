"""DeepSpeed's third stage: weights in shards as well, gathered module by module."""

from msgspec.structs import replace

from memcalc.workload.layouts import zero2

LAYOUT = replace(
    zero2.LAYOUT,
    name="zero3",
    summary="DeepSpeed: weights, gradients and state in shards",
    options=(
        *zero2.LAYOUT.options,
        *("offload_param", "stage3_max_live_parameters", "stage3_max_reuse_distance"),
        *("stage3_module_granularity_threshold", "stage3_param_persistence_threshold"),
        *("stage3_prefetch_bucket_size", "zero_hpz_partition_size"),
    ),
)
