"""What NCCL holds of a GPU outside PyTorch's allocator: a range (configs/nccl.toml).

NCCL allocates the buffers of its channels by itself, for each group of processes that communicates.
No reading of all groups of a training run was found, so no figure inside is the likely one.
"""

from __future__ import annotations

import functools
import tomllib
from typing import Any

from memcalc.catalog.gpus import Gpu
from memcalc.files.shipped import configs
from memcalc.records.prediction import Span

_MIB = 1 << 20


def nccl_span(gpu: Gpu | None, groups: tuple[int, ...]) -> Span:
    """Bytes that NCCL holds on one GPU.

    Args:
        gpu: which; ``None``: any.
        groups: processes in each group that communicates.
    """
    low = high = 0
    names: dict[str, None] = {}
    for ranks in groups:
        for part in _table()["part"]:
            if not _applies(part, gpu, ranks):
                continue
            # Of any GPU it is not known that the part is there.
            low += part["low"] * _MIB if gpu is not None else 0
            high += part["high"] * _MIB
            names[part["name"]] = None
    many = "group" if len(groups) == 1 else "groups"
    return Span(
        low=low, likely=None, high=high, source=f"NCCL, {len(groups)} {many}: {', '.join(names)}"
    )


def _applies(part: dict[str, Any], gpu: Gpu | None, ranks: int) -> bool:
    if ranks < max(part.get("ranks", 2), 2):
        return False
    if gpu is None:
        return True
    link = "nvlink" if gpu.name in _table()["links"]["nvlink"] else "pcie"
    since = tuple(map(int, part.get("capability", "0.0").split(".")))
    return part.get("link", link) == link and gpu.capability >= since


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads((configs() / "nccl.toml").read_text(encoding="utf-8"))


def together(*spans: Span) -> Span:
    """Several parts as one: ends add up; a part without a likely figure leaves none for the sum."""
    likely = [span.likely for span in spans if span.likely is not None]
    return Span(
        low=sum(span.low for span in spans),
        likely=sum(likely) if len(likely) == len(spans) else None,
        high=sum(span.high for span in spans),
        source="; ".join(span.source for span in spans),
    )
