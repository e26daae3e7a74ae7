"""The CUDA path: launches of the Triton kernels.

Beyond parameters and states a launch holds one table, 8 bytes for each part of each tensor.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from memcalc.optim import kernels, table
from memcalc.optim.batch import Batch8bit, Batch32bit, BatchBF16, Scalars
from memcalc.optim.blockwise import BLOCK

WARPS = 8
_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def adam_8bit(batch: Batch8bit, s: Scalars) -> None:
    """Update the batch in place, as ``reference.adam_8bit`` does."""
    columns = [batch.params, batch.grads, batch.state1, batch.state2]
    scales = [batch.absmax1, batch.absmax2]
    types = {"PARAM": _type(batch.params), "GRAD": _type(batch.grads)}
    maps = (batch.qmap1, batch.qmap2)
    for chosen, even in _launches(columns):
        rows = [_row(columns + scales, i) for i in chosen]
        options = {**types, "EVEN": even, "BLOCKS": table.SPANS[even] // BLOCK}
        _launch(kernels.adam_8bit, rows, (*maps, *s.arguments()), options, maps[0])


def adam_32bit(batch: Batch32bit, s: Scalars) -> None:
    """Update the batch in place, as ``reference.adam_32bit`` does."""
    columns = [batch.params, batch.grads, batch.state1, batch.state2]
    types = {"PARAM": _type(batch.params), "GRAD": _type(batch.grads)}
    for chosen, even in _launches(columns):
        rows = [_row(columns, i) for i in chosen]
        like = batch.params[0]
        options = {**types, "EVEN": even, "SPAN": table.SPANS[even]}
        _launch(kernels.adam_32bit, rows, s.arguments(), options, like)


def adamw_bf16(batch: BatchBF16, s: Scalars) -> None:
    """Update the batch in place, as ``reference.adamw_bf16`` does."""
    columns = [batch.params, batch.grads, batch.exp_avg, batch.exp_avg_sq, batch.shift]
    types = {"GRAD": _type(batch.grads)}
    for chosen, even in _launches(columns):
        rows = [[*_row(columns, i), batch.keys[i]] for i in chosen]
        like = batch.params[0]
        options = {**types, "EVEN": even, "SPAN": table.SPANS[even]}
        _launch(kernels.adamw_bf16, rows, s.arguments(), options, like)


def probe() -> None:
    """Compile and run the smallest kernel on the current GPU, raising what keeps it from that."""
    names = ("params", "grads", "state1", "state2")
    tensors = {name: [torch.zeros(16, device="cuda")] for name in names}
    scalars = Scalars(
        lr=0.0, beta1=0.0, beta2=0.0, eps=1.0, weight_decay=0.0,
        step=1, maximize=False, decoupled=True,
    )  # fmt: skip
    adam_32bit(Batch32bit(**tensors), scalars)


def _type(tensors: list[Tensor]) -> Any:
    return _TYPES[tensors[0].dtype]


def _launches(columns: list[list[Tensor]]) -> Iterator[tuple[list[int], bool]]:
    return table.split(
        table.is_even(p.numel(), (column[i].data_ptr() for column in columns))
        for i, p in enumerate(columns[0])
    )


def _row(columns: list[list[Tensor]], i: int) -> list[int]:
    return [columns[0][i].numel(), *(column[i].data_ptr() for column in columns)]


def _launch(
    kernel: Any, rows: list[list[int]], arguments: tuple[Any, ...], options: Any, like: Tensor
) -> None:
    words, programs = table.fill(rows, table.SPANS[options["EVEN"]])
    lines = torch.tensor(words, dtype=torch.int64)
    if like.is_cuda:
        # Pinned, so that the copy does not wait for the work already queued.
        lines = lines.pin_memory().to(like.device, non_blocking=True)
    with torch.cuda.device_of(like):
        kernel[(programs,)](
            lines,
            *arguments,
            COUNT=len(rows),
            DEPTH=table.depth(len(rows)),
            num_warps=WARPS,
            **options,
        )
