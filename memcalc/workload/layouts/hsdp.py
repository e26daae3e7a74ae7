"""FSDP2 in several replicas: shards within a group of GPUs, copies of the whole between groups."""

from msgspec.structs import replace

from memcalc.workload.layouts import fsdp2

LAYOUT = replace(
    fsdp2.LAYOUT,
    name="hsdp",
    summary="replicas of FSDP2's shards, such as hsdp=2x4",
    handed_over=None,
    dimensions=2,
)
