"""FSDP2 in several replicas: shards within a group of GPUs, copies of the whole between groups."""

from __future__ import annotations

from memcalc.workload.layouts import Layout, fsdp2

LAYOUT = Layout(
    name="hsdp",
    summary="replicas of FSDP2's shards, such as hsdp=2x4",
    place=fsdp2.place,
    options=fsdp2.LAYOUT.options,
    quiet=fsdp2.quiet,
    even=fsdp2.even,
    dimensions=2,
)
