"""What clipping and memcalc's own optimizers take on CUDA beside their outputs.

Readers as in ``memcalc.trace.scratch.readers``: they find shapes in the arguments of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.optim import table
from memcalc.trace.scratch.shapes import fixed, is_dense

_CHUNK = 65536
"""Elements of a foreach kernel's chunk: aten/src/ATen/native/cuda/MultiTensorApply.cuh."""


def _foreach_norm(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """A partial norm for each chunk, of the operation's type: float32 for 16-bit gradients.

    Other norms, and tensors with gaps, are taken one by one.
    """
    tensors = args[0]
    order = args[1] if len(args) > 1 else 2.0
    alike = len({t.dtype for t in tensors}) == 1 and all(map(is_dense, tensors))
    if order not in (1, 2, math.inf) or not alike:
        return None
    chunks = [-(-t.numel() // _CHUNK) for t in tensors]
    partial = max(4, tensors[0].element_size())
    spare = (chunks.count(0), out[0].element_size())
    return KernelCall("foreach_norm", (len(tensors), max(chunks), sum(chunks), partial, *spare))


def _foreach_max(args: tuple[Any, ...], out: Any) -> KernelCall | None:
    """The largest of each chunk, in the tensors' own type; of unlike tensors one by one.

    Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_max_cuda`` (2.13).
    """
    tensors = args[0]
    if len({t.dtype for t in tensors}) != 1 or not all(map(is_dense, tensors)):
        return None
    most = max(-(-t.numel() // _CHUNK) for t in tensors)
    return fixed(after=(len(tensors) * most * tensors[0].element_size(), ~0))


def _launches(parts: int, columns: int) -> Callable[[tuple[Any, ...], Any], KernelCall]:
    """The tables of memcalc's own optimizers, one launch after the other.

    Args:
        parts: lists of tensors, from the first argument on, that decide on wide loads.
        columns: words of a tensor's row.
    """

    def read(args: tuple[Any, ...], out: Any) -> KernelCall:
        sizes: list[int] = []
        rows = zip(*args[:parts], strict=True)
        # The allocator's blocks are aligned: an offset in the storage is all that can break it.
        evens = (
            table.is_even(row[0].numel(), (t.storage_offset() * t.element_size() for t in row))
            for row in rows
        )
        for number, (chosen, _) in enumerate(table.split(evens)):
            sizes += [table.table_bytes(len(chosen), columns), ~number]
        return fixed(tuple(sizes))

    return read


_PROBED = nested(64, 64, 64, 64, table.table_bytes(1, 5))
_OWN = {
    "memcalc_optim::adam_32bit_": _launches(4, 5),
    "memcalc_optim::adam_8bit_": _launches(4, 7),
    "memcalc_optim::adamw_bf16_": _launches(5, 7),
}
PROBES = dict.fromkeys(_OWN, _PROBED)
"""What an operator takes and gives back once per process, before it first runs.

memcalc's optimizers try Triton on four tensors of 16 float32: ``optim/launch.py``, ``probe``.
"""
READERS: dict[str, Callable[[tuple[Any, ...], Any], KernelCall | None]] = {
    **_OWN,
    "_foreach_norm": _foreach_norm,
    "_foreach_max": _foreach_max,
}
