"""DeepSpeed's third stage: weights in shards as well, gathered module by module."""

from __future__ import annotations

from memcalc.workload.layouts import Layout, Traffic, zero2


def traffic(step: Traffic) -> int:
    """Weights are gathered for forward and backward of each micro-batch, gradients scattered."""
    gathered = 2 * step.micro_batches * step.once_round(step.weights)
    return gathered + step.once_round(step.gradients)


LAYOUT = Layout(
    name="zero3",
    summary="DeepSpeed: weights, gradients and state in shards",
    place=zero2.place,
    options=(
        *zero2.OPTIONS,
        *("offload_param", "stage3_max_live_parameters", "stage3_max_reuse_distance"),
        *("stage3_module_granularity_threshold", "stage3_param_persistence_threshold"),
        *("stage3_prefetch_bucket_size", "zero_hpz_partition_size"),
    ),
    loop="deepspeed",
    package="deepspeed",
    folds=False,
    traffic=traffic,
    traffic_source=(
        f"{zero2.SOURCE}: weights are gathered for forward and for backward, gradients reduced and "
        "scattered"
    ),
)
