"""Record which operators of PyTorch's own tests CUDA refuses for which types of tensors.

    python -m memcalc simulate --gpu a100-40gb --steps 0 --backend driver --python PYTHON -- \
        python benchmarks/record_types.py FILE

PYTHON has PyTorch's CUDA build and its tests' own package (``pip install expecttest``). An operator
refuses a type where each call ended in an error in which all its tensors had that type, and the
same calls ran with 32 bits. FILE is new, and goes to configs/refused_types.json: what stands
somewhere before is not written over.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from memcalc.trace.operators.refused_types import key_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

SAMPLES = 8
LEFT_OUT = {"histogram", "histogramdd"}
"""They take minutes, and have no kernel for CUDA."""
BY_VALUE = ("overflow", "greater than", "out of bounds", "can't be cast", "{[")
"""Errors about numbers or shapes, or of writing in place, not about types alone."""
TYPES = {
    torch.bool: "Bool",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.uint8: "Byte",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float64: "Double",
}


class Watch(TorchDispatchMode):
    """Writes down which operators ended how, where all their tensors were of one type."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: set[tuple[str, str]] = set()
        self.refused: dict[tuple[str, str], tuple[str, str]] = {}
        """By operator and type: the class of the error, and its words."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        kinds = {TYPES.get(one.dtype) if one.is_cuda else None for one in tensors}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None or not all(one.numel() for one in tensors):
            return func(*args, **(kwargs or {}))
        key = (key_of(func), kind)
        try:
            out = func(*args, **(kwargs or {}))
        except (RuntimeError, NotImplementedError) as error:
            words = str(error).split("\n", 1)[0]
            if not any(mark in words for mark in BY_VALUE) and "backward" not in key[0]:
                self.refused[key] = type(error).__name__, words.replace(f"'{kind}'", "'{}'")
            raise
        self.ran.add(key)
        return out


def calls() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Operators and what each is given on the GPU, in 32 bits."""
    for op in op_db:
        if op.name in LEFT_OUT or torch.float32 not in op.dtypesIfCUDA:
            continue
        torch.manual_seed(0)
        samples = op.sample_inputs("cpu", torch.float32)
        for sample in itertools.islice(samples, SAMPLES):
            given = (sample.input, sample.args, sample.kwargs)
            yield (
                op,
                tree_map(lambda one: one.cuda() if isinstance(one, torch.Tensor) else one, given),
            )


def with_type(given: Any, dtype: torch.dtype) -> Any:
    """The same with other numbers in place of those of 32 bits."""

    def turned(one: Any) -> Any:
        wide = isinstance(one, torch.Tensor) and one.dtype is torch.float32
        return one.to(dtype) if wide else one

    return tree_map(turned, given)


def attempt(op: Any, given: Any, watch: Watch) -> bool:
    tensor, args, kwargs = given
    try:
        with watch:
            op(tensor, *args, **kwargs)
    except Exception:
        return False
    return True


def main(file: str) -> None:
    warnings.filterwarnings("ignore")
    watch = Watch()
    for op, given in calls():
        if attempt(op, given, watch):
            for dtype in TYPES:
                attempt(op, with_type(given, dtype), watch)
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (name, kind), (error, words) in sorted(watch.refused.items()):
        if (name, kind) not in watch.ran:
            found[name].setdefault(f"{error}: {words}", []).append(kind)
    told = {"torch": torch.__version__.split("+")[0], "refused": found}
    Path(file).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
