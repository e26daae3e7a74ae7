"""What a process finds in what its group sends it, where the others are made up: what it sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from memcalc.script.patches import Patches
from memcalc.trace.recipes import UnansweredError
from memcalc.trace.torch_private.dispatch import without_modes
from memcalc.trace.values import Values

_TO_LISTS = torch.ops.c10d.allgather_.default
_TO_ONE = torch.ops.c10d._allgather_base_.default
GATHERS = frozenset((_TO_LISTS, _TO_ONE))
"""Operators that give each process what all have sent. Of others, such as a broadcast or a sum,
tensors keep what this process put there."""


def install(patches: Patches) -> None:
    """Let every other process send the object that this one sends."""

    def gather_all(original: Any, object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather(
        original: Any, obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any
    ) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    def scatter(
        original: Any,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank()]

    for name, around in (
        ("all_gather_object", gather_all),
        ("gather_object", gather),
        ("broadcast_object_list", broadcast),
        ("scatter_object_list", scatter),
    ):
        patches.wrap(distributed_c10d, name, around, also=(dist,))


def arrived(values: Values, func: Any, args: tuple[Any, ...]) -> None:
    """Let what was gathered from all be known as what this process gave, where that is known.

    Args:
        values: of the device.
        func: one of ``GATHERS``.
        args: what it was called with.
    """
    for target, source in _pairs(func, args):
        if source.numel() > _MOST:
            continue
        with without_modes(), contextlib.suppress(UnansweredError):
            given = values.whole(source).reshape(-1)
            times = target.numel() // max(1, given.numel())
            values.know(target, given.repeat(times).reshape(target.shape))


def _pairs(func: Any, args: tuple[Any, ...]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if func is _TO_ONE:
        yield args[0], args[1]
        return
    for targets, source in zip(*args[:2], strict=True):
        yield from ((target, source) for target in targets)


_MOST = 1 << 12
"""Elements that are looked at: ranks agree about counts and sizes by few numbers."""
