"""DeepSpeed's second stage: optimizer state and gradients in shards.

The model waits on the host; ``deepspeed.initialize`` casts it, moves it and takes it over.
"""

from memcalc.workload.layouts import Layout, fsdp2

LAYOUT = Layout(
    name="zero2",
    summary="DeepSpeed: state and gradients in shards",
    place=fsdp2.on_the_host,
    handed_over=fsdp2.on_the_host,
    # Names that DeepSpeed's file has; ``offload=cpu`` keeps the optimizer's state on the host.
    options=(
        *("allgather_bucket_size", "allgather_partitions", "communication_data_type"),
        *("contiguous_gradients", "grad_accum_dtype", "offload", "overlap_comm"),
        *("reduce_bucket_size", "reduce_scatter", "round_robin_gradients", "sub_group_size"),
    ),
    loop="deepspeed",
    package="deepspeed",
)
