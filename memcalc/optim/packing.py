"""Small tensors side by side in one chunk, so that they share the cost of each torch call."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from memcalc.optim.batch import Batch8bit, Batch32bit

Batch = TypeVar("Batch", Batch8bit, Batch32bit)


def for_each_run(
    batch: Batch, update: Callable[[Batch], None], *, room: int, multiple: int
) -> None:
    """Update a batch run by run: a large tensor alone, small ones packed together.

    Args:
        batch: What to update in place.
        update: Updates, in place, a batch of one tensor.
        room: Elements that a packed run may have.
        multiple: Only tensors whose element count it divides are packed, so that blocks of that
            many elements stay whole.
    """
    for run in _runs([p.numel() for p in batch.params], room, multiple):
        part = _select(batch, run)
        if len(run) == 1:
            update(part)
            continue
        packed = _with_lists(part, lambda tensors: [torch.cat(tensors)])
        update(packed)
        for name in _lists(part):
            if name != "grads":
                _unpack(getattr(packed, name)[0], getattr(part, name))


def _runs(sizes: list[int], room: int, multiple: int) -> Iterator[list[int]]:
    """Yield every index once: alone, or with others whose sizes sum to at most the room."""
    run: list[int] = []
    filled = 0
    for index, size in enumerate(sizes):
        if size % multiple or size > room // 2:
            yield [index]
            continue
        if filled + size > room:
            yield run
            run, filled = [], 0
        run.append(index)
        filled += size
    if run:
        yield run


def _lists(batch: Batch) -> list[str]:
    return [f.name for f in fields(batch) if isinstance(getattr(batch, f.name), list)]


def _select(batch: Batch, run: list[int]) -> Batch:
    return _with_lists(batch, lambda tensors: [tensors[i] for i in run])


def _with_lists(batch: Batch, change: Callable[[list[Tensor]], list[Tensor]]) -> Batch:
    changed: dict[str, Any] = {name: change(getattr(batch, name)) for name in _lists(batch)}
    return replace(batch, **changed)


def _unpack(packed: Tensor, tensors: list[Tensor]) -> None:
    torch._foreach_copy_(tensors, torch.split(packed, [t.numel() for t in tensors]))
