"""Launches the Triton kernels: the path for CUDA tensors.

Beyond parameters and states a launch holds one table, 8 bytes for each part of each tensor.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from memcalc.optim import kernels, table
from memcalc.optim.blockwise import BLOCK
from memcalc.optim.scalars import Scalars

WARPS = 8
_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
_Tensors = list[Tensor]


def adam_8bit(
    params: _Tensors, grads: _Tensors, state1: _Tensors, state2: _Tensors,
    absmax1: _Tensors, absmax2: _Tensors, qmap1: Tensor, qmap2: Tensor, s: Scalars,
) -> None:  # fmt: skip
    """Apply one Adam step in place on CUDA, with 8-bit moments."""
    columns = [params, grads, state1, state2]
    types = {"PARAM": _TYPES[params[0].dtype], "GRAD": _TYPES[grads[0].dtype]}
    _launch(kernels.adam_8bit, columns, (qmap1, qmap2, *s.arguments()), types, [absmax1, absmax2])


def adam_32bit(
    params: _Tensors, grads: _Tensors, state1: _Tensors, state2: _Tensors, s: Scalars
) -> None:
    """Apply one Adam step in place on CUDA, with float32 moments."""
    types = {"PARAM": _TYPES[params[0].dtype], "GRAD": _TYPES[grads[0].dtype]}
    _launch(kernels.adam_32bit, [params, grads, state1, state2], s.arguments(), types)


def adamw_bf16(
    params: _Tensors, grads: _Tensors, exp_avg: _Tensors, exp_avg_sq: _Tensors,
    shift: _Tensors, keys: list[int], s: Scalars,
) -> None:  # fmt: skip
    """Apply one AdamW step in place on CUDA to bf16 parameters, moments and correction term."""
    columns = [params, grads, exp_avg, exp_avg_sq, shift]
    types = {"GRAD": _TYPES[grads[0].dtype]}
    _launch(kernels.adamw_bf16, columns, s.arguments(), types, keys=keys)


def probe() -> None:
    """Compile and run a small kernel on the current GPU; raise the error if that fails."""
    params, grads, state1, state2 = ([torch.zeros(16, device="cuda")] for _ in range(4))
    numbers = Scalars(0.0, 0.0, 0.0, 1.0, 0.0, step=1, maximize=False, decoupled=True)
    adam_32bit(params, grads, state1, state2, numbers)


def _launch(
    kernel: Any,
    columns: list[_Tensors],
    arguments: tuple[Any, ...],
    types: dict[str, Any],
    scales: list[_Tensors] | None = None,
    keys: list[int] | None = None,
) -> None:
    """Launch a Triton kernel once for tensors that allow wide loads and once for the others."""
    sizes, like = [p.numel() for p in columns[0]], columns[0][0]
    addresses = [[t.data_ptr() for t in row] for row in zip(*columns, strict=True)]
    for chosen, even in table.split(map(table.is_even, sizes, addresses)):
        rows = [
            [
                *(sizes[i], *addresses[i]),
                *(column[i].data_ptr() for column in scales or ()),
                *([keys[i]] if keys is not None else ()),
            ]
            for i in chosen
        ]
        span = table.SPANS[even]
        words, programs = table.fill(rows, span)
        lines = torch.tensor(words, dtype=torch.int64)
        if like.is_cuda:
            # Pinned, so that the copy does not wait for the work already queued.
            lines = lines.pin_memory().to(like.device, non_blocking=True)
        extent = {"BLOCKS": span // BLOCK} if scales is not None else {"SPAN": span}
        with torch.cuda.device_of(like):
            kernel[(programs,)](
                lines,
                *arguments,
                COUNT=len(rows),
                DEPTH=table.depth(len(rows)),
                EVEN=even,
                num_warps=WARPS,
                **extent,
                **types,
            )
