"""Types of numbers for which CUDA has no kernel, where fake tensors ask for none.

What each operator of PyTorch's own tests said over the stand-in driver stands in
``configs/refused_types.json`` (benchmarks/record_types.py).
"""

from __future__ import annotations

import builtins
import functools
from typing import Any

import torch

from memcalc.files import shipped
from memcalc.trace.operators import release
from memcalc.trace.operators.scalar_types import name_of


class _Table:
    """Operators by name, and what each says of a type.

    Args:
        data: of the file.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        major, minor = data["torch"].split(".")[:2]
        self.torch = int(major), int(minor)
        """Releases after it may have more kernels."""
        self.refused: dict[str, dict[str, str]] = {
            name: {kind: words for words, kinds in errors.items() for kind in kinds}
            for name, errors in data["refused"].items()
        }


@functools.cache
def _table() -> _Table:
    return shipped.read("refused_types.json", _Table)


def key_of(func: Any) -> str:
    """An operator and its overload, in place or not, as the file names them."""
    name = func._schema.name.removeprefix("aten::").rstrip("_")
    return f"{name}.{func._overloadname}"


def of(func: Any) -> dict[str, str]:
    """What an operator says of types that it has no kernel for."""
    return _table().refused.get(key_of(func), {})


def check(
    refused: dict[str, str], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse what has no kernel: ``refused`` is what ``of`` says.

    Only what was recorded counts: all tensors of one type, and none that is asked for or that a
    number with a fraction leads to.

    Raises:
        RuntimeError: in PyTorch's words (``NotImplementedError`` is one).
    """
    major, minor = _table().torch
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    kinds = {one.dtype for one in tensors}
    widened = kwargs.get("dtype") is not None or (
        torch.Tag.pointwise in func.tags and any(isinstance(arg, float) for arg in args)
    )
    if len(kinds) != 1 or widened or release.is_since(major, minor + 1):
        return
    kind = name_of(kinds.pop())
    words = refused.get(kind)
    if words is not None and all(one.numel() for one in tensors):
        error, _, said = words.partition(": ")
        raise getattr(builtins, error)(said.replace("{}", kind))
