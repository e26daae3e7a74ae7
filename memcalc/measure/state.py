"""Adds up a real optimizer's state, by storage and by element count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from memcalc.records.measurement import StateReading
from memcalc.workload.wrapped_tensors import plain


def read_state(optimizer: torch.optim.Optimizer) -> StateReading:
    """Read an optimizer's state; shared storages count once, except in the tutorial's sum."""
    bytes_at = {"device": 0, "host": 0, "managed": 0}
    seen: set[int] = set()
    elements = tutorial = 0
    on_gpu = any(
        p.device.type != "cpu" for group in optimizer.param_groups for p in group["params"]
    )
    for tensor in _tensors(optimizer.state.values()):
        elements += tensor.numel()
        tutorial += tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        if storage._cdata in seen:
            continue
        seen.add(storage._cdata)
        bytes_at[_place(tensor, on_gpu)] += storage.nbytes()
    return StateReading(tutorial_elements=elements, tutorial_bytes=tutorial, **bytes_at)


def storage_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of the unique storages behind some tensors."""
    seen: dict[int, int] = {}
    for outer in tensors:
        if outer is not None:
            for tensor in plain(outer):
                storage = tensor.untyped_storage()
                seen[storage._cdata] = storage.nbytes()
    return sum(seen.values())


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from plain(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _place(tensor: torch.Tensor, on_gpu: bool) -> str:
    if getattr(tensor, "is_paged", False):
        return "managed"
    if tensor.device.type != "cpu":
        return "device"
    # A CPU run's state is on its device; only step counters are beside it there too.
    return "host" if on_gpu or tensor.dim() == 0 else "device"
