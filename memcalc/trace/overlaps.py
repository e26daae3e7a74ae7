"""What a tensor holds after another one in its memory was written to.

A row or a diagonal of a mask that a script sets is a view: what is written there stands in the mask
too, and in every other tensor that shows this memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memcalc.trace.recipes import Recipe


def written_over(
    tensor: torch.Tensor, before: Recipe, part: torch.Tensor, made: Recipe | None
) -> Recipe | None:
    """What a tensor holds once another was written to in its memory; ``None``: nobody knows.

    Args:
        tensor: what shows the memory.
        before: what it held.
        part: what was written to.
        made: what that holds now; ``None``: that is not known.
    """
    if _is_symbolic(tensor) or _is_symbolic(part) or tensor.dtype != part.dtype:
        return None
    offset = part.storage_offset() - tensor.storage_offset()
    if offset >= _span(tensor) or -offset >= _span(part):
        return before
    if made is None:
        return None
    if tensor.is_contiguous() and offset >= 0 and offset + _span(part) <= _span(tensor):
        place = part.shape, part.stride(), offset
        return _of(_with_part, [before, made, *place], before, made)
    if part.is_contiguous() and offset <= 0 and _span(tensor) - offset <= _span(part):
        return _of(_part_of, [made, tensor.shape, tensor.stride(), -offset], made)
    return None


def _is_symbolic(tensor: torch.Tensor) -> bool:
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return any(type(size) is not int for size in sizes)


def _of(func: Any, args: list[Any], *parts: Recipe) -> Recipe:
    depth = 1 + max(part.depth for part in parts)
    return Recipe(func, args, {}, None, depth, sure=all(part.sure for part in parts))


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last; none where a size is 0."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _span(tensor: torch.Tensor) -> int:
    return span(tensor.shape, tensor.stride())


def _with_part(whole: torch.Tensor, part: torch.Tensor, size: Any, stride: Any, at: int) -> Any:
    # What was worked out may lie otherwise than on the device.
    return torch.as_strided_scatter(whole.contiguous(), part.reshape(size), size, stride, at)


def _part_of(whole: torch.Tensor, size: Any, stride: Any, at: int) -> Any:
    return whole.contiguous().as_strided(size, stride, at).clone()
