"""Computes the memory that NCCL holds on a GPU, outside PyTorch's allocator (configs/nccl.toml).

NCCL allocates buffers for the channels of each group of processes that communicates. No reading of
all groups of a training run was found, so the range has no likely figure.
"""

import functools

import msgspec

from memcalc.catalog.gpus import Gpu
from memcalc.files import shipped
from memcalc.files.artifact import decode
from memcalc.records.prediction import Span
from memcalc.units import MIB


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation of NCCL, in MiB."""

    name: str
    low: int
    high: int
    source: str
    link: str | None = None
    """The link between the GPUs, or None for any."""
    capability: tuple[int, int] = (0, 0)
    """The lowest compute capability that has it."""
    ranks: int = 2
    """The size of the smallest group that has it."""


class NcclTable(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of configs/nccl.toml."""

    part: tuple[Part, ...]
    links: dict[str, tuple[str, ...]]
    """GPUs with faster links than PCI Express, by the link."""


def nccl_span(gpu: Gpu | None, groups: tuple[int, ...]) -> Span:
    """Return the byte range NCCL holds on one GPU; ``groups``: the number of ranks of each."""
    low = high = 0
    nvlink = table().links["nvlink"]
    names: dict[str, None] = {}
    for ranks in groups:
        for part in table().part:
            link = None if gpu is None else "nvlink" if gpu.name in nvlink else "pcie"
            there = gpu is None or (part.link in (None, link) and gpu.capability >= part.capability)
            if ranks < max(part.ranks, 2) or not there:
                continue
            # Without a GPU it is unknown whether NCCL has this part.
            low += part.low * MIB if gpu is not None else 0
            high += part.high * MIB
            names[part.name] = None
    many = "group" if len(groups) == 1 else "groups"
    return Span(
        low=low, likely=None, high=high, source=f"NCCL, {len(groups)} {many}: {', '.join(names)}"
    )


@functools.cache
def table() -> NcclTable:
    """Read the table of NCCL's allocations (configs/nccl.toml).

    Raises:
        UsageError: the file is damaged.
    """
    return shipped.read("nccl.toml", lambda data: decode(NcclTable, data))
