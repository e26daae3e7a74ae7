"""What operators write to, and whether a program could decide by what they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def decides(func: Any, out: Any) -> bool:
    """Whether a program could decide by what this operator makes."""
    return is_decided_by(out) and not unwritten(func)


def is_decided_by(out: Any) -> bool:
    """Whether a program could decide by such results, once they are written."""
    return any(map(_decides, out if isinstance(out, list | tuple) else (out,)))


def _decides(item: Any) -> bool:
    if not isinstance(item, torch.Tensor):
        return False
    return item.dim() == 0 or not item.dtype.is_floating_point


_writes: dict[Any, tuple[int, ...]] = {}


def places_written(func: Any) -> tuple[int, ...]:
    """Which of its arguments an operator writes into."""
    places = _writes.get(func)
    if places is None:
        schema = getattr(func, "_schema", None)
        arguments = schema.arguments if schema is not None else ()
        places = _writes[func] = tuple(
            index
            for index, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
    return places


def written(func: Any, args: Any) -> Iterator[torch.Tensor]:
    """The tensors an operator writes into."""
    for place in places_written(func):
        value = args[place] if place < len(args) else None
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def unwritten(func: Any) -> bool:
    """It makes memory that nobody has written: zeros, as far as anyone can say."""
    return "empty" in getattr(func, "__name__", "")
